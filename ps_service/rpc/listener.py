"""The base of the listeners that accept connections beside gRPC: accepting, serving, and ending."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from ps_wire.direct import TOKEN_BYTES
from ps_wire.runtime import forks
from ps_wire.sockets.connection import RecordConnection

if TYPE_CHECKING:
    import socket

    from ps_service.access.identities import Identity
    from ps_wire.v1.frames_pb2 import Hello

_log = logging.getLogger(__name__)

C = TypeVar("C", bound=RecordConnection)
K = TypeVar("K")

_TOKEN_SECONDS: Final = 30.0
"""Seconds for which a token is valid."""


class Holder(NamedTuple):
    """Whom a token was issued to: a trainer, and the identity that has opened its gRPC stream."""

    trainer: bytes
    identity: Identity


class Listener(Generic[C, K]):
    """Accepts connections on a socket, and serves each in a task until `serve` returns, which gets the other end, for
    display, and this listener."""

    transport: ClassVar[str]
    """Name of the transport, as in the metrics."""

    connection: ClassVar[str]
    """A connection of this kind, in messages."""

    def __init__(
        self, serve: Callable[[C, str, Listener[C, K]], Awaitable[object]], opened: set[RecordConnection]
    ) -> None:
        self._serve = serve
        # To whom each was issued, and until when it is valid.
        self._tokens: dict[bytes, tuple[Holder, float]] = {}
        self._socket: socket.socket | None = None
        self._connections: dict[asyncio.Task[None], C] = {}
        # What is known of the peer of each open connection.
        self._known: dict[C, K] = {}
        self._opened = opened

    def admitted(self, connection: C, hello: Hello) -> Identity | None:
        """Whose session the peer of a connection has a valid token for, which cannot be used again; None if it has
        none."""
        raise NotImplementedError

    def forked(self) -> None:
        """In a forked child: closes the child's copy of the socket, so that it does not outlive the parent."""
        if self._socket is not None:
            os.close(self._socket.detach())
            self._socket = None

    async def close(self) -> None:
        """Ends every connection."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))

    def _issue_token(self, trainer: bytes, identity: Identity) -> bytes:
        """A new token for a trainer, whose session belongs to an identity."""
        now = asyncio.get_running_loop().time()
        self._tokens = {token: known for token, known in self._tokens.items() if known[1] > now}
        token = secrets.token_bytes(TOKEN_BYTES)
        self._tokens[token] = (Holder(trainer, identity), now + _TOKEN_SECONDS)
        return token

    def _take_token(self, token: bytes) -> Holder | None:
        """To whom a token was issued, if it is valid; it is not any more."""
        holder, until = self._tokens.pop(token, (None, 0.0))
        return holder if asyncio.get_running_loop().time() < until else None

    def _listen(self, sock: socket.socket) -> None:
        """Begins to accept on a listening socket."""
        sock.setblocking(False)
        self._socket = sock
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept)
        forks.put_away_in_children(self)

    def _arrived(self, peer: socket.socket, address: Any) -> None:
        """Takes a socket that was accepted."""
        raise NotImplementedError

    def _hold(self, connection: C, known: K, peer: str) -> None:
        """Serves a connection until it ends."""
        self._known[connection] = known
        task = asyncio.create_task(self._serve_and_close(connection, peer))
        self._connections[task] = connection
        self._opened.add(connection)
        task.add_done_callback(self._finished)

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            peer, address = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.warning("%s could not be accepted: %s", self.connection, error)
            self._pause()
            return
        self._arrived(peer, address)

    def _pause(self) -> None:
        """Stops accepting for a second, because without descriptors the socket would stay readable without end."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.call_later(1.0, self._go_on)

    def _go_on(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    async def _serve_and_close(self, connection: C, peer: str) -> None:
        try:
            await self._serve(connection, peer, self)
        finally:
            await connection.close()

    def _finished(self, task: asyncio.Task[None]) -> None:
        connection = self._connections.pop(task)
        self._opened.remove(connection)
        del self._known[connection]
