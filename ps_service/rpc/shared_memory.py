"""Accepts shared-memory connections from trainers of the same host.

If the trainer runs on this host, the welcome over gRPC offers the name of a Unix socket, and a token that can be used
once. The socket has an abstract name, so it leaves no file behind, however the owner ends. A peer needs the token, and
must have the owner's user, which the kernel reports.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar

from ps_service.access.identities import ANYONE
from ps_service.rpc.listener import Listener
from ps_wire.shared_memory import descriptors
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.shared_memory.hosts import host_id
from ps_wire.shared_memory.peers import PeerProcess, PeerWatch
from ps_wire.v1.frames_pb2 import Hello, SharedMemoryOffer

if TYPE_CHECKING:
    from ps_service.access.identities import Identity
    from ps_wire.connections.connection import Traffic
    from ps_wire.limits import Limits
    from ps_wire.sockets.connection import RecordConnection


_log = logging.getLogger(__name__)


class SharedMemoryListener(Listener[SharedMemoryConnection, PeerProcess]):
    """Listens for shared-memory connections and offers them."""

    transport: ClassVar[str] = "shared_memory"
    connection: ClassVar[str] = "a shared-memory connection"

    def __init__(
        self,
        limits: Limits,
        serve: Callable[[SharedMemoryConnection, str, Listener[Any, Any]], Awaitable[object]],
        traffic: Traffic,
        opened: set[RecordConnection],
    ) -> None:
        super().__init__(serve, opened)
        self._limits = limits
        self._traffic = traffic
        self._name = b""
        self.watch = PeerWatch()

    def open(self) -> None:
        """Begins to listen, if this system supports shared-memory connections."""
        if not host_id():
            return
        self._name = b"ps-shm-" + secrets.token_hex(16).encode()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(b"\0" + self._name)
        sock.listen(128)
        self._listen(sock)

    async def close(self) -> None:
        self.watch.end()
        await super().close()

    def offer(self, hello: Hello, identity: Identity = ANYONE) -> SharedMemoryOffer | None:
        """The offer for a trainer that has connected over gRPC; None if it cannot have a shared-memory connection."""
        if self._socket is None or hello.host != host_id() or descriptors.shortage():
            return None
        return SharedMemoryOffer(
            socket=self._name,
            token=self._issue_token(hello.trainer, identity),
            max_segment_bytes=self._limits.max_segment_bytes,
        )

    def admitted(self, connection: SharedMemoryConnection, hello: Hello) -> Identity | None:
        holder = self._take_token(hello.shared_memory_token)
        return holder.identity if holder is not None and holder.trainer == hello.trainer else None

    def _arrived(self, peer: socket.socket, address: Any) -> None:
        process = self._admitted(peer)
        if process is None:
            peer.close()
            return
        shared_memory = SharedMemoryConnection(
            peer, self._limits.max_message_bytes, self._limits.max_segment_bytes, self._traffic
        )
        self._hold(shared_memory, process, f"process {process.pid}")
        self.watch.add(shared_memory, process)

    def _admitted(self, peer: socket.socket) -> PeerProcess | None:
        """The process at the other end; None if it may not have a shared-memory connection."""
        try:
            return PeerProcess.of(peer)
        except PermissionError as error:
            _log.warning("a shared-memory connection was refused: %s", error)
        except LookupError as error:
            # This process would not notice that it has stopped. gRPC does, so the session stays there.
            _log.info("a trainer gets no shared-memory connection: %s", error)
        return None
