"""A direct connection between a trainer and an owner: a TCP socket, on which each packet is a record.

A large payload is written from the tensor's memory, in parts between which other messages can be sent, and is read
straight into the memory that the tensor will use. Nothing is encrypted.

The gRPC stream on which the session began stays open and idle beside it. The kernel answers for a process that is
stopped, and the threads of gRPC do not: when the stream ends, each side ends the direct connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.limits import MAX_FRAME_BYTES
from ps_wire.sockets.connection import RecordConnection
from ps_wire.sockets.reader import END, HEADER
from ps_wire.sockets.stream_socket import StreamSocket
from ps_wire.sockets.writer import RecordWriter

if TYPE_CHECKING:
    from ps_wire.connections.connection import Traffic
    from ps_wire.sockets.stream_socket import Reader

_TCP_INFO: Final = struct.Struct("=2xB53xI")
"""From Linux's `tcp_info`: how often bytes were sent again, and milliseconds since the last acknowledgement."""

MAGIC: Final = b"ps-wire1"
"""The first bytes on a direct connection, from the trainer. The token follows."""

TOKEN_BYTES: Final = 32
"""Length of the token."""

_LINGER: Final = 1.0
"""Seconds that closing a connection waits for the other side to receive what was sent."""


class TcpSocket(StreamSocket):
    """A TCP socket that notices a silent other side, and that can end in order. `ended` is set once it is closed."""

    connection: ClassVar[str] = "the direct connection"

    def __init__(self, sock: socket.socket, reader: Reader, on_broken: Callable[[str], None]) -> None:
        # A small message must not wait for the acknowledgement of the one before.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ended = asyncio.Event()
        super().__init__(sock, reader, on_broken)

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last acknowledgement, while bytes are sent again because none came; otherwise 0.

        A side that does not read acknowledges nevertheless, so it is not silent.
        """
        if self._closed:
            return 0.0
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        repeated, milliseconds = _TCP_INFO.unpack(info)
        return milliseconds / 1000 if repeated else 0.0

    async def finish(self, seconds: float) -> None:
        """Sends what is unsent, says that nothing follows, and waits some seconds until the other side has closed."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(seconds):
                await self.drained.wait()
                if not self._closed:
                    self._reader = _Discarding()
                    self.resume()
                    self._sock.shutdown(socket.SHUT_WR)
                    await self.ended.wait()

    def close(self) -> None:
        self.ended.set()
        super().close()


class _Discarding:
    """Takes what arrives on a socket that is closed, and drops it."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(4096))

    def read(self, nbytes: int) -> None:
        pass


class DirectConnection(RecordConnection):
    """One end of a direct connection. `traffic` counts its bytes."""

    _stream: TcpSocket

    def __init__(self, sock: socket.socket, traffic: Traffic | None = None) -> None:
        super().__init__(MAX_FRAME_BYTES, traffic)
        stream = TcpSocket(sock, self._reader, self._break)
        self._begin(stream, RecordWriter(stream, self._traffic))

    @property
    def silent_seconds(self) -> float:
        """As `TcpSocket.silent_seconds`."""
        return self._stream.silent_seconds

    async def closed(self) -> None:
        """Waits until it is closed on this side."""
        await self._stream.ended.wait()

    async def close(self) -> None:
        if self.is_over:
            await super().close()
            return
        try:
            with suppress(ConnectionBroken):
                self._records.write(HEADER.pack(END, 0, 0, 0), at_once=True)
            self._records.end()
            self._deliver_no_more()
            # The kernel would drop what it has not sent yet if something arrived after the socket was closed.
            await self._stream.finish(_LINGER)
        finally:
            self._let_go()
