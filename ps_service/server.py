"""Server: one owner, listening."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from ps_service.engine.engine import Engine
from ps_service.rpc.grpc_stream import OPTIONS
from ps_service.rpc.servicer import Servicer
from ps_wire.buffers import teach_malloc

_log = logging.getLogger("ps_service.server")

SERVICE: Final = "ps_wire.v1.Owner"
"""Full name of the gRPC service, under which its health is asked for too."""


class Server:
    """Serves an owner over gRPC, with health and reflection beside it.

    Use it as an async context manager, or call `start` and then `drain` or `stop`.

    Args:
        engine: The owner.
        listen: Host and port; port 0 takes a free one.
        insecure: Allows to listen elsewhere than on loopback, although nothing is encrypted.

    Raises:
        ValueError: The address is not a loopback address and `insecure` was not given.
    """

    def __init__(self, engine: Engine, listen: str = "127.0.0.1:0", insecure: bool = False) -> None:
        if not insecure and not _is_loopback(listen):
            raise ValueError(
                f"{listen} can be reached from other machines and traffic is not encrypted; "
                "listen on 127.0.0.1, or pass --insecure if the network is trusted"
            )
        self.engine = engine
        self.servicer = Servicer(engine)
        self._listen = listen
        self._health = HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """Host and port that trainers connect to."""
        return f"{self._listen.rpartition(':')[0]}:{self._port}"

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            OSError: The address cannot be had.
        """
        _check_free(self._listen)
        teach_malloc()
        self._server = self._assemble()
        try:
            self._port = self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._listen}: {error}") from error
        await self._server.start()
        if self.engine.limits.max_segment_bytes:
            self.servicer.lanes.open()
        self._sweeper = asyncio.create_task(self._sweep())
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        _log.info("%s is serving on %s", self.engine.name, self.address)

    async def drain(self, seconds: float) -> None:
        """Takes no new work, lets what is running end, and stops.

        Args:
            seconds: How long running work is waited for.
        """
        await self._health.enter_graceful_shutdown()
        self.engine.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self.servicer.settled()
        except TimeoutError:
            _log.warning("work was still running after %g s of draining; it is cut off", seconds)
        await self.stop()

    async def stop(self) -> None:
        """Stops at once."""
        self.engine.draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        if self._server is not None:
            await self._server.stop(0)
        await self.servicer.lanes.close()
        self.servicer.close()
        await asyncio.to_thread(self.engine.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _assemble(self) -> grpc.aio.Server:
        # A gRPC server belongs to the event loop that runs when it is made.
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((self.servicer.handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection((SERVICE, health, reflection.SERVICE_NAME), server)
        return server

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.engine.limits.lease_seconds / 4)
            self.servicer.conversations.sweep()


def _is_loopback(listen: str) -> bool:
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost" or listen.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_free(listen: str) -> None:
    """Raises `OSError` when an address cannot be had, and says why; gRPC tells that only to its own log."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        return
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host.strip("[]"), int(port)), family=family):
            pass
    except OSError as error:
        reason = "is another owner there?" if error.errno == errno.EADDRINUSE else error.strerror
        raise OSError(f"cannot listen on {listen}: {reason}") from error
