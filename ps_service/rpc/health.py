"""Reports the state of the owner in gRPC's health protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

if TYPE_CHECKING:
    import grpc

SERVICE: Final = "ps_wire.v1.Owner"
"""Full name of the owner's gRPC service, which health checks may name."""

HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
"""Full name of the health service itself."""


class Health:
    """Reports whether the server and its service serve."""

    def __init__(self) -> None:
        self._servicer = HealthServicer()
        self._telling: set[asyncio.Task[None]] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Lets a gRPC server answer health checks."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def tell(self, stalled: bool) -> None:
        """Reports that the owner serves, or that it is stalled. Once it drains, it stays `NOT_SERVING`."""
        status = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await self._servicer.set(name, status.NOT_SERVING if stalled else status.SERVING)

    def tell_soon(self, stalled: bool) -> None:
        """Like `tell`, from a callback on the event loop."""
        task = asyncio.create_task(self.tell(stalled))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def drain(self) -> None:
        """Reports from now on that the owner does not serve."""
        await self._servicer.enter_graceful_shutdown()
