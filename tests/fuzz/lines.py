"""Lines to an owner on which anything can be sent: gRPC, a direct connection, and one over shared memory."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Any, Final

import grpc

from ps_wire.connections import frames
from ps_wire.connections.frames import Packet
from ps_wire.direct import MAGIC
from ps_wire.errors import InvalidArgumentError
from ps_wire.shared_memory.connection import NEW_SEGMENT, SEGMENT
from ps_wire.sockets.reader import HEADER, INLINE
from ps_wire.v1.frames_pb2 import Frame, Welcome

SEGMENT_PART: Final = struct.Struct("<BIQQB")
"""Of what is sent over shared memory: kind of the record, number of the segment, length, size of its memory, seals."""

_SEALS: Final = 0b0111
"""F_SEAL_SEAL, F_SEAL_SHRINK and F_SEAL_GROW."""

_SECONDS: Final = 3.0
"""Seconds that an owner may read nothing from a line, before it is given up."""


class LineEnded(Exception):
    """The owner has ended the line, or reads nothing from it."""


class GrpcLine:
    """A stream of gRPC. `part` is the bytes of a message."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        make: Any = self._channel.stream_stream("/ps_wire.v1.Owner/Session")
        self._call = make()
        self._arrived: deque[Frame] = deque()

    async def frames(self, given: list[bytes]) -> None:
        """Sends frames, in batches."""
        for i in range(0, len(given), 32):
            some = given[i : i + 32]
            batch = Frame()
            batch.batch.frames.extend(some)
            await self.raw(batch.SerializeToString() if len(some) > 1 else some[0])

    async def raw(self, data: bytes) -> None:
        """Sends a message of gRPC. Raises `LineEnded`."""
        try:
            async with asyncio.timeout(_SECONDS):
                await self._call.write(data)
        except (grpc.RpcError, asyncio.InvalidStateError, TimeoutError, grpc.aio.UsageError) as error:
            raise LineEnded(str(error)) from None

    async def receive(self) -> Frame:
        """The next frame. Raises `LineEnded`."""
        while not self._arrived:
            try:
                data = await self._call.read()
            except (grpc.RpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and not self._call.cancelled():
                    raise
                raise LineEnded(str(error)) from None
            if data is grpc.aio.EOF:
                raise LineEnded("the stream is over")
            unpacked: deque[Packet] = deque()
            frames.unpack(frames.parse(data), unpacked)
            self._arrived.extend(each.frame for each in unpacked)
        return self._arrived.popleft()

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()


class SocketLine:
    """Records on a socket: a direct connection, or one over shared memory."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._bytes = bytearray()
        self._more = asyncio.Event()
        self._is_over = False
        self._loop.add_reader(sock.fileno(), self._readable)

    @classmethod
    def direct(cls, address: str, welcome: Welcome) -> SocketLine:
        """A direct connection, with its token."""
        sock = socket.create_connection((address.rpartition(":")[0], welcome.direct.port))
        sock.sendall(MAGIC + welcome.direct.token)
        return cls(sock)

    @classmethod
    def shared_memory(cls, welcome: Welcome) -> SocketLine:
        """A connection to the Unix socket that was offered."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(b"\0" + welcome.shared_memory.socket)
        return cls(sock)

    async def frames(self, given: list[bytes]) -> None:
        """Sends frames as records."""
        await self.raw(b"".join(map(_record, given)))

    async def raw(self, data: bytes) -> None:
        """Sends bytes. Raises `LineEnded`."""
        try:
            async with asyncio.timeout(_SECONDS):
                await self._loop.sock_sendall(self._sock, data)
        except (OSError, TimeoutError) as error:
            raise LineEnded(str(error)) from None

    def segment(self, part: bytes) -> None:
        """Sends a record of a segment of shared memory, with a descriptor if it is a new one."""
        kind, number, nbytes, size, seals = SEGMENT_PART.unpack_from(part)
        frame = part[SEGMENT_PART.size :]
        data = HEADER.pack(kind, len(frame), number, nbytes) + frame
        passed = []
        if kind == NEW_SEGMENT and seals != 255:
            descriptor = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, size)
            if seals:
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals & _SEALS)
            passed = [descriptor]
        try:
            socket.send_fds(self._sock, [data], passed)
        except OSError as error:
            raise LineEnded(str(error)) from None
        finally:
            for each in passed:
                os.close(each)

    async def receive(self) -> Frame:
        """The next frame. Raises `LineEnded`."""
        while True:
            found = self._next()
            if found is not None:
                return found
            if self._is_over:
                raise LineEnded("the owner has closed the connection")
            self._more.clear()
            await self._more.wait()

    def _next(self) -> Frame | None:
        while len(self._bytes) >= HEADER.size:
            kind, frame_bytes, _, payload = HEADER.unpack_from(self._bytes)
            middle = HEADER.size + frame_bytes
            end = middle + (payload if kind == INLINE else 0)
            if len(self._bytes) < end:
                return None
            data = bytes(self._bytes[HEADER.size : middle])
            del self._bytes[:end]
            if kind in (INLINE, SEGMENT, NEW_SEGMENT):
                return Frame.FromString(data)
        return None

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(1 << 18, socket.CMSG_SPACE(4 * 16))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                for each in struct.unpack(f"{len(content) // 4}i", content):
                    os.close(each)
        self._bytes += data
        if not data:
            self._is_over = True
            self._loop.remove_reader(self._sock.fileno())
        self._more.set()

    async def close(self) -> None:
        with suppress(ValueError):
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()


Line = GrpcLine | SocketLine


def _record(data: bytes) -> bytes:
    """A frame as a record: its payload follows it."""
    try:
        packet = frames.parse(data)
    except InvalidArgumentError:
        return HEADER.pack(INLINE, len(data), 0, 0) + data
    frame = packet.frame.SerializeToString()
    return b"".join((HEADER.pack(INLINE, len(frame), 0, packet.nbytes), frame, *packet.payload))
