"""Accepts shared-memory connections from trainers of the same host.

If the trainer runs on this host, the welcome over gRPC offers the name of a Unix socket, and a token that can be used
once. The socket has an abstract name, so it leaves no file behind, however the owner ends. A peer needs the token, and
must have the owner's user, which the kernel reports.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ps_service.rpc.listener import Listener
from ps_wire.shared_memory import descriptors
from ps_wire.shared_memory.connection import SharedMemoryConnection
from ps_wire.shared_memory.hosts import host_id
from ps_wire.v1.frames_pb2 import Hello, SharedMemoryOffer

if TYPE_CHECKING:
    from ps_wire.connections.connection import Traffic
    from ps_wire.limits import Limits
    from ps_wire.sockets.connection import RecordConnection


_log = logging.getLogger(__name__)

_CREDENTIALS: Final = struct.Struct("3i")

_LOOK_SECONDS: Final = 2.5
"""Interval of checks of the processes at the other ends."""

_STOPPED_SECONDS: Final = 12.5
"""Seconds that a trainer may be stopped before its connection ends. Together with the interval as long as in gRPC."""


class State(enum.Enum):
    """The state of a process."""

    ALIVE = "alive"
    STOPPED = "stopped"
    GONE = "gone"


class PeerProcess:
    """A process of this host. Raises `LookupError` if its PID is in another namespace, or it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        _, started = _stat(pid)
        if not started:
            raise LookupError(f"process {pid} cannot be seen from here")
        # A PID may be used for another process later.
        self._started = started

    @property
    def state(self) -> State:
        """Its present state."""
        letter, started = _stat(self.pid)
        if started != self._started or letter in "ZXx":
            return State.GONE
        return State.STOPPED if letter in "Tt" else State.ALIVE


def _stat(pid: int) -> tuple[str, str]:
    """The letter of the state of a process, and when it has started; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text() if pid > 0 else ""
    except OSError:
        return "", ""
    # The name, in parentheses, may hold any characters.
    fields = text.rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


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
        # When each process that is stopped was first seen so.
        self._stopped: dict[SharedMemoryConnection, float] = {}
        self._looking: asyncio.TimerHandle | None = None

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
        if self._looking is not None:
            self._looking.cancel()
        await super().close()

    def offer(self, hello: Hello) -> SharedMemoryOffer | None:
        """The offer for a trainer that has connected over gRPC; None if it cannot have a shared-memory connection."""
        if self._socket is None or hello.host != host_id() or descriptors.shortage():
            return None
        return SharedMemoryOffer(
            socket=self._name,
            token=self._issue_token(hello.trainer),
            max_segment_bytes=self._limits.max_segment_bytes,
        )

    def admits(self, connection: SharedMemoryConnection, hello: Hello) -> bool:
        return self._take_token(hello.shared_memory_token) == hello.trainer

    def _arrived(self, peer: socket.socket, address: Any) -> None:
        process = self._admitted(peer)
        if process is None:
            peer.close()
            return
        shared_memory = SharedMemoryConnection(
            peer, self._limits.max_message_bytes, self._limits.max_segment_bytes, self._traffic
        )
        self._hold(shared_memory, process, f"process {process.pid}")
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

    def _look(self) -> None:
        """Cuts the connections of processes that have ended or have been stopped for long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        stopped: dict[SharedMemoryConnection, float] = {}
        for shared_memory, process in self._known.items():
            state = process.state
            if state is State.GONE:
                shared_memory.cut(f"process {process.pid} is gone, although its socket is open")
            elif state is State.STOPPED:
                stopped[shared_memory] = since = self._stopped.get(shared_memory, now)
                if now - since >= _STOPPED_SECONDS:
                    shared_memory.cut(f"process {process.pid} has been stopped for {_STOPPED_SECONDS:g} s")
        self._stopped = stopped
        self._looking = loop.call_later(_LOOK_SECONDS, self._look) if self._known else None
