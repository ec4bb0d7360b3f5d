"""A connected socket that OpenSSL reads and writes, and its handshake."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

Piece = bytes | bytearray | memoryview

_READ_BYTES: Final = 256 * 1024
"""Most bytes that are read at a time."""

_RECORD_BYTES: Final = 16 * 1024
"""Most bytes of a record of TLS. OpenSSL reads and writes one at a time."""

_WAITS: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class EncryptedSocket:
    """A socket that does not block, with TLS. The handshake is over once `shake` has returned without an error.

    Its `sock` takes the place of the socket that it is given, which is detached. Its methods raise `BlockingIOError` if
    they have to wait for the other side, and `OSError` if the connection has ended, of which `ssl.SSLError` is one. A
    socket that is broken already may raise that at once, and is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        try:
            if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                # `wrap_socket` would raise it, too, and leave the socket open.
                raise OSError(error, os.strerror(error))
            self.sock: Final = context.wrap_socket(
                sock, server_side, do_handshake_on_connect=False, server_hostname=server_hostname
            )
        except BaseException:
            sock.close()
            raise

    def shake(self) -> None:
        """Goes on with the handshake. Calling it again when that is over does nothing."""
        try:
            self.sock.do_handshake()
        except _WAITS:
            raise BlockingIOError from None

    def receive(self, nbytes: int) -> bytes:
        """At most so many bytes; none at the end."""
        buffer = bytearray(nbytes)
        return bytes(buffer[: self.receive_into(memoryview(buffer))])

    def receive_into(self, buffer: memoryview) -> int:
        """Reads into memory; returns the number of bytes, 0 at the end."""
        left, found = buffer[:_READ_BYTES], 0
        try:
            while left:
                nbytes = self.sock.recv_into(left)
                found += nbytes
                if nbytes < _RECORD_BYTES:
                    break  # most often nothing more has arrived
                left = left[nbytes:]
        except _WAITS:
            if not found:
                raise BlockingIOError from None
        return found

    @property
    def has_more(self) -> bool:
        """Whether something that was read waits to be taken. It makes the socket not readable."""
        return bool(self.sock.pending())

    def send(self, piece: Piece) -> int:
        """Sends the first bytes of a piece; returns their number. If it has to wait, the next piece that is sent has to
        begin with the same bytes, which are encrypted already."""
        return self.send_all((piece,))

    def send_all(self, pieces: Iterable[Piece]) -> int:
        """Like `send`, for pieces one behind the other."""
        sent = 0
        try:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    nbytes = self.sock.send(left)
                    sent += nbytes
                    left = left[nbytes:]
        except _WAITS:
            if not sent:
                raise BlockingIOError from None
        except ssl.SSLEOFError as error:
            # What has arrived before may still be read.
            raise BrokenPipeError(str(error)) from None
        return sent


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
