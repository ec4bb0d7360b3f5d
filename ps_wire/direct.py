"""A direct connection between a trainer and an owner: a TCP socket, on which each packet is a record.

A large payload is written from the tensor's memory, in parts between which other messages can be sent, and is read
straight into the memory that the tensor will use. It is encrypted if the owner serves over TLS.

The gRPC stream on which the session began stays open and idle beside it. The kernel answers for a process that is
stopped, and the threads of gRPC do not: when the stream ends, each side ends the direct connection.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ps_wire.connections.connection import ConnectionBroken
from ps_wire.limits import MAX_FRAME_BYTES
from ps_wire.sockets.connection import RecordConnection
from ps_wire.sockets.encrypted_socket import EncryptedSocket
from ps_wire.sockets.reader import END, HEADER
from ps_wire.sockets.tcp_socket import TcpSocket, TlsSocket
from ps_wire.sockets.writer import RecordWriter

if TYPE_CHECKING:
    import socket

    from ps_wire.connections.connection import Traffic

MAGIC: Final = b"ps-wire1"
"""The first bytes on a direct connection, from the trainer. The token follows."""

TOKEN_BYTES: Final = 32
"""Length of the token."""

_LINGER: Final = 1.0
"""Seconds that closing a connection waits for the other side to receive what was sent."""


class DirectConnection(RecordConnection):
    """One end of a direct connection. `traffic` counts its bytes. Of a TLS socket the handshake is over."""

    _stream: TcpSocket

    def __init__(self, sock: socket.socket | EncryptedSocket, traffic: Traffic | None = None) -> None:
        super().__init__(MAX_FRAME_BYTES, traffic)
        stream: TcpSocket
        if isinstance(sock, EncryptedSocket):
            stream = TlsSocket(sock, self._reader, self._break)
        else:
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
