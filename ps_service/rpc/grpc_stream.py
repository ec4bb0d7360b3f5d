"""The owner's end of gRPC: its options, health checks, serializers that count bytes, and a stream as a connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from ps_service.rpc.methods import SERVICE
from ps_wire.connections.connection import Connection, ConnectionBroken
from ps_wire.connections.frames import Packet, unpack
from ps_wire.limits import GRPC_OPTIONS

if TYPE_CHECKING:
    from ps_wire.connections.connection import Traffic

T = TypeVar("T")

OPTIONS: Final[list[tuple[str, int]]] = [
    *GRPC_OPTIONS,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # Two owners must never share one port, each answering every other trainer.
    ("grpc.so_reuseport", 0),
]
"""Options of the owner's gRPC server."""


def address_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The host and port of the caller, for display."""
    return unquote(context.peer()).removeprefix("ipv4:").removeprefix("ipv6:")


def certificate_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The name in the certificate of the caller; empty if it has shown none."""
    found = context.auth_context()
    names = (*found.get("x509_common_name", ()), *found.get("x509_subject_alternative_name", ()))
    return str(next(filter(None, names), b""), "utf-8", "replace")


def reading(parse: Callable[[bytes], T], traffic: Traffic) -> Callable[[bytes], T]:
    """A deserializer whose bytes are counted as received."""

    def counted(data: bytes) -> T:
        traffic.received += len(data)
        return parse(data)

    return counted


def writing(serialize: Callable[[T], bytes], traffic: Traffic) -> Callable[[T], bytes]:
    """A serializer whose bytes are counted as sent."""

    def counted(message: T) -> bytes:
        data = serialize(message)
        traffic.sent += len(data)
        return data

    return counted


class GrpcStream(Connection):
    """The owner's end of a `Session` stream, which ends when the handler that holds it returns. On this side of gRPC a
    lost trainer looks like one that has closed the stream."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        self._closed = False
        self._arrived: deque[Packet] = deque()

    batches = True

    async def send(self, packet: Packet) -> None:
        if self._closed:
            raise ConnectionBroken("this end of the stream is closed")
        try:
            await self._context.write(packet)
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise ConnectionBroken(str(error)) from error

    async def receive(self) -> Packet | None:
        if self._arrived:
            return self._arrived.popleft()
        if self._closed:
            return None
        try:
            item = await self._context.read()
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise ConnectionBroken(str(error)) from error
        if item is grpc.aio.EOF:
            return None
        assert isinstance(item, Packet)
        unpack(item, self._arrived)
        return self._arrived.popleft()

    async def close(self) -> None:
        self._closed = True


class Health:
    """Reports whether the server and its service serve."""

    def __init__(self) -> None:
        self._servicer = HealthServicer()
        self._has: dict[str, bool] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Lets a gRPC server answer health checks."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def tell(self, trouble: str, is_there: bool) -> None:
        """Reports whether the owner has a trouble of a kind: it serves while it has none. Once it drains, it stays
        `NOT_SERVING`."""
        if self._has.get(trouble) is is_there:
            return
        self._has[trouble] = is_there
        status = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await self._servicer.set(name, status.NOT_SERVING if any(self._has.values()) else status.SERVING)

    def tell_soon(self, trouble: str, is_there: bool) -> None:
        """Like `tell`, from a callback on the event loop."""
        task = asyncio.create_task(self.tell(trouble, is_there))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def drain(self) -> None:
        """Reports from now on that the owner does not serve."""
        await self._servicer.enter_graceful_shutdown()
