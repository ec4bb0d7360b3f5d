"""Accepts direct connections from trainers: TCP beside gRPC.

The welcome over gRPC offers a port, and a token that can be used once. The first bytes on a connection, behind the
handshake of TLS if the owner serves over that, are a fixed word and the token; until they have arrived, there is a
socket and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ps_service.access.identities import ANYONE
from ps_service.rpc.listener import Holder, Listener
from ps_wire.direct import MAGIC, TOKEN_BYTES, DirectConnection
from ps_wire.runtime.noop import noop
from ps_wire.shared_memory import descriptors
from ps_wire.sockets.encrypted_socket import EncryptedSocket
from ps_wire.v1.frames_pb2 import DirectOffer, Hello

if TYPE_CHECKING:
    import socket

    from ps_service.access.identities import Identity
    from ps_service.rpc.certificates import OwnerCertificates
    from ps_wire.connections.connection import Traffic
    from ps_wire.sockets.connection import RecordConnection

_TOKEN_SECONDS: Final = 5.0
"""Seconds that a new connection may take to send its token."""

_MOST_WAITING: Final = 64
"""Most connections without a token. The oldest is closed for a new one, because trainers send theirs at once."""


@dataclass(slots=True)
class _Arrival:
    """A connection that has not sent its token yet."""

    sock: socket.socket
    address: str
    timer: asyncio.TimerHandle
    encrypted: EncryptedSocket | None = None
    received: bytes = b""

    def receive(self, nbytes: int) -> bytes:
        """At most so many bytes; none at the end. Raises `BlockingIOError` if there are none now, and `OSError`."""
        if self.encrypted is None:
            return self.sock.recv(nbytes)
        self.encrypted.shake()
        return self.encrypted.receive(nbytes)


class DirectListener(Listener[DirectConnection, Holder]):
    """Listens for direct connections, at `port`, and offers them. Of each it is known which trainer has opened it. With
    `certificates` they are encrypted. `when_refused` hears the address of who is refused, and why."""

    transport: ClassVar[str] = "direct"
    connection: ClassVar[str] = "a direct connection"

    def __init__(
        self,
        serve: Callable[[DirectConnection, str, Listener[Any, Any]], Awaitable[object]],
        traffic: Traffic,
        opened: set[RecordConnection],
        certificates: OwnerCertificates | None = None,
    ) -> None:
        super().__init__(serve, opened)
        self._traffic = traffic
        self.certificates = certificates
        self.when_refused: Callable[[str, str], object] = noop
        self._arrivals: dict[int, _Arrival] = {}
        self.port = 0

    def open(self, sock: socket.socket) -> None:
        """Begins to accept on a listening TCP socket."""
        self.port = sock.getsockname()[1]
        self._listen(sock)

    async def close(self) -> None:
        for number in list(self._arrivals):
            self._drop(number)
        await super().close()

    def forked(self) -> None:
        super().forked()
        for arrival in self._arrivals.values():
            os.close(arrival.sock.detach())

    def offer(self, hello: Hello, identity: Identity = ANYONE) -> DirectOffer | None:
        """The offer for a trainer that has connected over gRPC; None if this owner has no direct port."""
        if self._socket is None or descriptors.shortage():
            return None
        return DirectOffer(port=self.port, token=self._issue_token(hello.trainer, identity))

    def admitted(self, connection: DirectConnection, hello: Hello) -> Identity | None:
        holder = self._known.get(connection)
        return holder.identity if holder is not None and holder.trainer == hello.trainer else None

    def _arrived(self, peer: socket.socket, address: Any) -> None:
        if len(self._arrivals) >= _MOST_WAITING:
            self._drop(next(iter(self._arrivals)))
        peer.setblocking(False)
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        encrypted = None
        if self.certificates is not None:
            try:
                encrypted = EncryptedSocket(peer, self.certificates.context(), server_side=True)
            except OSError as error:
                self.when_refused(f"{host}:{address[1]}", str(error))
                return
            peer = encrypted.sock
        number, loop = peer.fileno(), asyncio.get_running_loop()
        timer = loop.call_later(_TOKEN_SECONDS, self._drop, number)
        self._arrivals[number] = _Arrival(peer, f"{host}:{address[1]}", timer, encrypted)
        loop.add_reader(number, self._read_token, number)

    def _read_token(self, number: int) -> None:
        arrival = self._arrivals[number]
        whole = len(MAGIC) + TOKEN_BYTES
        try:
            # Not one byte more, because the next ones belong to the connection.
            data = arrival.receive(whole - len(arrival.received))
        except BlockingIOError:
            return
        except OSError as error:
            self.when_refused(arrival.address, str(error))
            data = b""
        arrival.received += data
        if not data or not MAGIC.startswith(arrival.received[: len(MAGIC)]):
            self._drop(number)
        elif len(arrival.received) == whole:
            holder = self._take_token(arrival.received[len(MAGIC) :])
            if holder is not None:
                self._leave(number)
                self._hold(DirectConnection(arrival.encrypted or arrival.sock, self._traffic), holder, arrival.address)
            else:
                self.when_refused(arrival.address, "its token is not valid")
                self._drop(number)

    def _drop(self, number: int) -> None:
        self._leave(number).sock.close()

    def _leave(self, number: int) -> _Arrival:
        """Removes a connection from those without a token."""
        asyncio.get_running_loop().remove_reader(number)
        arrival = self._arrivals.pop(number)
        arrival.timer.cancel()
        return arrival
