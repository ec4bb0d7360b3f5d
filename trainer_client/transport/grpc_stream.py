"""The trainer's end of a `Session` stream over gRPC."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import grpc

from ps_wire.connections import frames
from ps_wire.connections.buffers import teach_malloc
from ps_wire.connections.connection import Connection, ConnectionBroken
from ps_wire.connections.frames import Packet, unpack
from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime import forks
from ps_wire.tokens import metadata_of
from trainer_client.transport.channels import is_refusal, open_channel, reason, refusal
from trainer_client.transport.offers import open_direct, open_shared_memory

if TYPE_CHECKING:
    from ps_wire.direct import DirectConnection
    from ps_wire.shared_memory.connection import SharedMemoryConnection
    from ps_wire.tls import TLS
    from ps_wire.tokens import Metadata, Token
    from ps_wire.v1.frames_pb2 import DirectOffer, SharedMemoryOffer

_METHOD: Final = "/ps_wire.v1.Owner/Session"

_LINGER: Final = 1.0
"""Seconds that closing a stream waits for the owner to receive what was sent."""


class GrpcConnector:
    """Opens streams to the owner at `address` (host:port), each on a channel of its own; with `tls`, encrypted, and
    with a `token`, as the identity that has it."""

    def __init__(self, address: str, tls: TLS | None = None, token: Token = None) -> None:
        teach_malloc()
        self.address: Final = address
        self._tls = tls
        self._token = token

    async def connect(self) -> GrpcConnection:
        return GrpcConnection(open_channel(self.address, self._tls), metadata_of(self._token))

    async def connect_shared_memory(
        self, offer: SharedMemoryOffer, max_message_bytes: int
    ) -> SharedMemoryConnection | None:
        return open_shared_memory(offer, max_message_bytes)

    async def connect_direct(self, offer: DirectOffer) -> DirectConnection:
        return await open_direct(offer, self.address, self._tls)

    async def close(self) -> None:
        """Does nothing: each connection closes its own channel."""


class GrpcConnection(Connection):
    """One stream. Closing it closes its channel."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata = ()) -> None:
        self._channel = channel
        opening = channel.stream_stream(
            _METHOD, request_serializer=frames.serialize, response_deserializer=frames.parse
        )
        self._call: grpc.aio.StreamStreamCall[Any, Any] = opening(metadata=metadata)
        self._reading = asyncio.Lock()
        self._read: asyncio.Task[Packet | None] | None = None
        self._closed = False
        self._arrived: deque[Packet] = deque()
        forks.put_away_in_children(self)

    batches = True

    async def send(self, packet: Packet) -> None:
        with _breaking():
            await self._call.write(packet)

    async def receive(self) -> Packet | None:
        if self._arrived:
            return self._arrived.popleft()
        packet = await self._next()
        if packet is None and self._closed:
            raise ConnectionBroken("the stream was closed on this side")
        if packet is None:
            return None
        try:
            unpack(packet, self._arrived)
        except InvalidArgumentError as error:
            raise ConnectionBroken(f"the owner sent something that is not a frame: {error}") from None
        return self._arrived.popleft()

    async def close(self) -> None:
        self._closed = True
        try:
            if not self._call.done():
                await self._finish()
        finally:
            self._call.cancel()
            await self._channel.close()
            if (read := self._read) is not None:
                await asyncio.wait([read])
                # Asked, so that the event loop does not report an error that nobody waits for.
                if not read.cancelled():
                    read.exception()

    def forked(self) -> None:
        """In a forked child, keeps the channel from being freed: gRPC would close the sockets of the parent."""
        for thing in (self._channel, self._call):
            forks.keep_for_ever(thing)

    async def _next(self) -> Packet | None:
        """What is read next. A receiver that is cancelled leaves it to the next one.

        gRPC cancels the stream with a read, and would report that to the event loop later, when it may be closed.
        """
        async with self._reading:
            if self._read is None:
                self._read = asyncio.create_task(self._read_one())
            # Unlike awaiting the task, this does not cancel it.
            await asyncio.wait([self._read])
            read, self._read = self._read, None
            return read.result()

    async def _read_one(self) -> Packet | None:
        with _breaking():
            item = await self._call.read()
            if item is grpc.aio.EOF:
                if await self._call.code() is grpc.StatusCode.OK:
                    return None
                if is_refusal(await self._call.code()):
                    raise refusal(await self._call.code(), await self._call.details())
                raise ConnectionBroken(reason(await self._call.code(), await self._call.details()))
        if not isinstance(item, Packet):
            # gRPC has logged the details.
            raise ConnectionBroken("the owner sent something that is not a frame")
        return item

    async def _finish(self) -> None:
        # Cancelling the call would drop messages in transit, so the owner is asked to end the stream first.
        # If the stream has ended already, gRPC raises one of these.
        with suppress(TimeoutError, ConnectionBroken, grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            async with asyncio.timeout(_LINGER):
                await self._call.done_writing()
                while await self._next() is not None:
                    pass


@contextmanager
def _breaking() -> Iterator[None]:
    """Raises `ConnectionBroken` in the place of what gRPC raises on a stream that has ended; or the error of an owner
    that does not let the caller in."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if is_refusal(error.code()):
            raise refusal(error.code(), error.details()) from None
        raise ConnectionBroken(reason(error.code(), error.details())) from error
    except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
        raise ConnectionBroken(str(error)) from error
    except asyncio.CancelledError:
        # gRPC also raises it in a task that was not cancelled, if the stream was closed on this side.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionBroken("the stream was closed here") from None
