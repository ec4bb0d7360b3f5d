"""TCP sockets that notice a silent other side, and that can end in order: plain, and encrypted."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from ps_wire.sockets.stream_socket import StreamSocket, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_wire.sockets.encrypted_socket import EncryptedSocket
    from ps_wire.sockets.stream_socket import Piece, Reader

_TCP_INFO: Final = struct.Struct("=2xB53xI")
"""From Linux's `tcp_info`: how often bytes were sent again, and milliseconds since the last acknowledgement."""


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
                    # Not that of an `SSLSocket`, which would read without decrypting from then on.
                    socket.socket.shutdown(self._sock, socket.SHUT_WR)
                    await self.ended.wait()

    def close(self) -> None:
        self.ended.set()
        super().close()


class TlsSocket(TcpSocket):
    """A TCP socket whose bytes OpenSSL encrypts shortly before the kernel gets them, a record of TLS at a time."""

    def __init__(self, encrypted: EncryptedSocket, reader: Reader, on_broken: Callable[[str], None]) -> None:
        self._encrypted = encrypted
        super().__init__(encrypted.sock, reader, on_broken)
        self._send = encrypted.send
        # Bytes behind the handshake may have been read with it.
        self._loop.call_soon(self._read_rest)

    def _transmit(self, pieces: Sequence[Piece]) -> int:
        # Each piece is a record of its own.
        return self._encrypted.send_all(joined(pieces))

    def resume(self) -> None:
        super().resume()
        self._loop.call_soon(self._read_rest)

    def _receive(self, buffer: memoryview) -> int:
        nbytes = self._encrypted.receive_into(buffer)
        if self._encrypted.has_more:
            self._loop.call_soon(self._read_rest)
        return nbytes

    def _read_rest(self) -> None:
        if self.reading and not self._closed and self._encrypted.has_more:
            self._read()


class _Discarding:
    """Takes what arrives on a socket that is closed, and drops it."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(4096))

    def read(self, nbytes: int) -> None:
        pass
