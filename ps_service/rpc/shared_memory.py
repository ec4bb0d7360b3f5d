"""Accepts shared-memory connections from trainers of the same host.

Every session begins over gRPC. If the trainer runs on this host, the welcome offers a shared-memory connection: the
name of a Unix socket, and a token that can be used once. The socket has an abstract name, so it leaves no file behind,
however the owner ends. A peer needs the token, and must have the owner's user, which the kernel reports. `Servicer`
makes the offer, and moves the session to the connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ps_service.metrics.open_connections import OpenConnections
from ps_service.rpc.peer_process import PeerProcess, State
from ps_wire.runtime import forks
from ps_wire.shared_memory import descriptors
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.shared_memory.hosts import host_id
from ps_wire.v1.frames_pb2 import Hello, SharedMemoryOffer

if TYPE_CHECKING:
    from ps_wire.connections.traffic import Traffic
    from ps_wire.limits import Limits

_log = logging.getLogger(__name__)

_CREDENTIALS: Final = struct.Struct("3i")
_TOKEN_SECONDS: Final = 30.0

_LOOK_SECONDS: Final = 2.5
"""Interval of checks of the processes at the other ends."""

_STOPPED_SECONDS: Final = 12.5
"""Seconds that a trainer may be stopped before its connection ends. Together with the interval as long as in gRPC."""


class SharedMemoryListener:
    """Listens for shared-memory connections and offers them.

    Args:
        limits: Limits of messages and of shared memory.
        serve: Serves a shared-memory connection until it ends.
        traffic: Counts the bytes of all shared-memory connections.
        opened: Lists the open connections.
    """

    def __init__(
        self,
        limits: Limits,
        serve: Callable[[SharedMemoryConnection], Awaitable[None]],
        traffic: Traffic | None = None,
        opened: OpenConnections | None = None,
    ) -> None:
        self._limits = limits
        self._traffic = traffic
        self._serve = serve
        self._socket: socket.socket | None = None
        self._name = b""
        self._tokens: dict[bytes, tuple[bytes, float]] = {}
        self._connections: dict[asyncio.Task[None], SharedMemoryConnection] = {}
        self._opened = OpenConnections() if opened is None else opened
        self._processes: dict[SharedMemoryConnection, PeerProcess] = {}
        self._stopped: dict[SharedMemoryConnection, float] = {}
        self._looking: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begins to listen, if this system supports shared-memory connections."""
        if not host_id():
            return
        self._name = b"ps-shm-" + secrets.token_hex(16).encode()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._socket.bind(b"\0" + self._name)
        self._socket.listen(128)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)
        forks.put_away_in_children(self)

    def forked(self) -> None:
        """In a forked child: closes the child's copy of the socket, so that it does not outlive the parent."""
        if self._socket is not None:
            os.close(self._socket.detach())
            self._socket = None

    async def close(self) -> None:
        """Ends every shared-memory connection."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._looking is not None:
            self._looking.cancel()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))

    def offer(self, hello: Hello) -> SharedMemoryOffer | None:
        """The offer for a trainer that has connected over gRPC; None if it cannot have a shared-memory connection."""
        if self._socket is None or hello.host != host_id() or descriptors.shortage():
            return None
        now = asyncio.get_running_loop().time()
        self._tokens = {token: known for token, known in self._tokens.items() if known[1] > now}
        token = secrets.token_bytes(32)
        self._tokens[token] = (hello.trainer, now + _TOKEN_SECONDS)
        return SharedMemoryOffer(socket=self._name, token=token, max_segment_bytes=self._limits.max_segment_bytes)

    def admits(self, hello: Hello) -> bool:
        """Whether a peer has a valid token, which cannot be used again."""
        trainer, until = self._tokens.pop(hello.shared_memory_token, (b"", 0.0))
        return trainer == hello.trainer and asyncio.get_running_loop().time() < until

    def peer_of(self, shared_memory: SharedMemoryConnection) -> str:
        """The process at the other end, for display."""
        process = self._processes.get(shared_memory)
        return "" if process is None else f"process {process.pid}"

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            peer, _ = self._socket.accept()
        except OSError as error:
            _log.warning("a shared-memory connection could not be accepted: %s", error)
            self._pause()
            return
        process = self._admitted(peer)
        if process is None:
            peer.close()
            return
        shared_memory = SharedMemoryConnection(
            peer, self._limits.max_message_bytes, self._limits.max_segment_bytes, self._traffic
        )
        task = asyncio.create_task(self._hold(shared_memory))
        self._connections[task] = shared_memory
        self._opened.add(shared_memory)
        self._processes[shared_memory] = process
        task.add_done_callback(self._ended)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _admitted(self, peer: socket.socket) -> PeerProcess | None:
        """The process at the other end; None if it may not have a shared-memory connection."""
        pid, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user != os.geteuid():
            _log.warning("user %d was refused at the shared-memory connection door", user)
            return None
        try:
            return PeerProcess(pid)
        except LookupError as error:
            # This process would not notice that it has stopped. gRPC does, so the session stays there.
            _log.info("a trainer gets no shared-memory connection: %s", error)
            return None

    def _ended(self, task: asyncio.Task[None]) -> None:
        shared_memory = self._connections.pop(task)
        self._opened.remove(shared_memory)
        del self._processes[shared_memory]
        self._stopped.pop(shared_memory, None)

    def _look(self) -> None:
        """Cuts the connections of processes that have ended or have been stopped for long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for shared_memory, process in self._processes.items():
            state = process.state
            if state is State.STOPPED and now - self._stopped.setdefault(shared_memory, now) >= _STOPPED_SECONDS:
                shared_memory.cut(f"process {process.pid} has been stopped for {_STOPPED_SECONDS:g} s")
            elif state is State.GONE:
                shared_memory.cut(f"process {process.pid} is gone, although its socket is open")
            elif state is State.ALIVE:
                self._stopped.pop(shared_memory, None)
        self._looking = loop.call_later(_LOOK_SECONDS, self._look) if self._processes else None

    def _pause(self) -> None:
        """Stops accepting for a second, because without descriptors the socket would stay readable without end."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.call_later(1.0, self._go_on)

    def _go_on(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    async def _hold(self, shared_memory: SharedMemoryConnection) -> None:
        try:
            await self._serve(shared_memory)
        finally:
            await shared_memory.close()
