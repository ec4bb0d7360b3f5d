"""The TCP socket of a direct connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from ps_wire.sockets.stream_socket import StreamSocket

if TYPE_CHECKING:
    from ps_wire.sockets.stream_socket import Reader

_TCP_INFO: Final = struct.Struct("=2xB53xI")
"""From Linux's `tcp_info`: how often bytes were sent again, and milliseconds since the last acknowledgement."""


class TcpSocket(StreamSocket):
    """Writes pieces of memory, and reads. A subclass that replaces `_transmit` and `_receive` can encrypt them.

    Args:
        sock: A connected TCP socket.
        reader: Takes what arrives.
        on_broken: Called once with the reason when nothing more can be read.

    Attributes:
        ended: Set once it is closed.
    """

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
        """Sends what is unsent, says that nothing follows, and waits until the other side has closed.

        Args:
            seconds: How long to wait.
        """
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
        self._memory = memoryview(bytearray(4096))

    def buffer(self) -> memoryview:
        return self._memory

    def read(self, nbytes: int) -> None:
        pass
