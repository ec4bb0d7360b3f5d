"""A socket whose bytes OpenSSL encrypts and decrypts, and its handshake.

OpenSSL works in memory: it would take two calls of the kernel for each 16 KiB that it reads from a socket itself.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

Piece = bytes | bytearray | memoryview

_READ_BYTES: Final = 256 * 1024
"""Most encrypted bytes that are read at a time."""

_WRITE_BYTES: Final = 64 * 1024
"""Most bytes that are encrypted at a time."""


class _Buffers(threading.local):
    """A buffer for what is read of any socket of a thread: it is taken out before the next read."""

    def __init__(self) -> None:
        self.own = memoryview(bytearray(_READ_BYTES))


_buffers: Final = _Buffers()


class EncryptedSocket:
    """A socket that does not block, with TLS. The handshake is over once `shake` has returned without an error.

    All methods raise `BlockingIOError` if they have to wait for the other side, and `OSError` if the connection has
    ended, of which `ssl.SSLError` is one.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        self.sock: Final = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, server_hostname)

    def shake(self) -> None:
        """Goes on with the handshake. Calling it again when that is over does nothing."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._fill()
            except ssl.SSLError:
                # The other side hears why.
                with suppress(OSError):
                    self._flush()
                raise
            else:
                self._flush()
                return

    def receive(self, nbytes: int) -> bytes:
        """At most so many bytes; none at the end."""
        buffer = bytearray(nbytes)
        return bytes(buffer[: self.receive_into(memoryview(buffer))])

    def receive_into(self, buffer: memoryview) -> int:
        """Reads into memory; returns the number of bytes, 0 at the end."""
        found = self._decrypt(buffer)
        if found:
            return found
        if not self._fill():
            return 0
        found = self._decrypt(buffer)
        if not found:
            raise BlockingIOError
        return found

    @property
    def has_more(self) -> bool:
        """Whether something that was read waits to be taken. It makes the socket not readable."""
        return bool(self._tls.pending() or self._incoming.pending)

    def encrypt(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What has to be sent for some pieces of memory, with all that has to go before it."""
        sent: list[Piece] = []
        for piece in pieces:
            whole = memoryview(piece)
            for begin in range(0, len(whole), _WRITE_BYTES):
                self._tls.write(whole[begin : begin + _WRITE_BYTES])
                # Memory of OpenSSL that grows is copied each time.
                sent.append(self._outgoing.read())
        return sent

    def _decrypt(self, buffer: memoryview) -> int:
        found = 0
        try:
            # One call decrypts 16 KiB.
            while found < len(buffer):
                # With a buffer it returns the number of bytes.
                nbytes = cast("int", self._tls.read(len(buffer) - found, buffer[found:]))
                if not nbytes:
                    break
                found += nbytes
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass  # that is all for now, or for ever: what the socket reads next tells which
        return found

    def _fill(self) -> int:
        """Reads what has arrived; returns the number of bytes, 0 at the end."""
        buffer = _buffers.own
        nbytes = self.sock.recv_into(buffer)
        if nbytes:
            self._incoming.write(buffer[:nbytes])
        else:
            self._incoming.write_eof()
        return nbytes

    def _flush(self) -> None:
        """Sends what the handshake has to say, for which a new socket has room."""
        waiting = self._outgoing.read()
        if waiting and self.sock.send(waiting) < len(waiting):
            raise ConnectionError("the other side does not read during the handshake of TLS")


async def shaken(encrypted: EncryptedSocket) -> None:
    """Completes the handshake. Raises `OSError`, of which `ssl.SSLError` is one."""
    loop, number = asyncio.get_running_loop(), encrypted.sock.fileno()
    while True:
        readable = asyncio.Event()
        with suppress(BlockingIOError):
            encrypted.shake()
            return
        loop.add_reader(number, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(number)
