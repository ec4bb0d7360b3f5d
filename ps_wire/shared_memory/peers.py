"""The processes at the other ends of shared-memory connections, and whether they run.

A process that is stopped closes no socket, and the kernel takes messages for it. So its state is looked at. Messages
between the event loops could not tell it from one that computes for long without running Python code.
"""

from __future__ import annotations

import asyncio
import enum
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from ps_wire.shared_memory.connection import SharedMemoryConnection

_CREDENTIALS: Final = struct.Struct("3i")

_LOOK_SECONDS: Final = 2.5
"""Interval of checks of the processes at the other ends."""

_STOPPED_SECONDS: Final = 10.0
"""Seconds that a process may be stopped before its connection ends. With an interval before and after it, fifteen."""


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

    @classmethod
    def of(cls, sock: socket.socket) -> PeerProcess:
        """The process at the other end of a Unix socket. Raises `PermissionError` if another user runs it, and
        `LookupError`."""
        pid, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user != os.geteuid():
            raise PermissionError(f"a process of another user ({user}) is there")
        return cls(pid)

    @property
    def state(self) -> State:
        """Its present state."""
        letter, started = _stat(self.pid)
        if started != self._started or letter in "ZXx":
            return State.GONE
        return State.STOPPED if letter in "Tt" else State.ALIVE


class PeerWatch:
    """Cuts the connections of processes that have ended or have been stopped for long. Looks at them with one timer,
    while there are any."""

    def __init__(self) -> None:
        # An open connection is held by its event loop, and one that is over goes at once.
        self._watched: WeakKeyDictionary[SharedMemoryConnection, PeerProcess] = WeakKeyDictionary()
        # When each process that is stopped was first seen so.
        self.stopped: dict[SharedMemoryConnection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: SharedMemoryConnection, process: PeerProcess) -> None:
        """Watches the process at the other end of a connection, until that is over."""
        self._watched[connection] = process
        if self._timer is None:
            self._look_later()

    def end(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._watched.clear()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        stopped: dict[SharedMemoryConnection, float] = {}
        watched = [(each, process) for each, process in self._watched.items() if not each.is_over]
        for connection, process in watched:
            state = process.state
            if state is State.GONE:
                connection.cut(f"process {process.pid} is gone, although its socket is open")
            elif state is State.STOPPED:
                stopped[connection] = since = self.stopped.get(connection, now)
                if now - since >= _STOPPED_SECONDS:
                    connection.cut(f"process {process.pid} has been stopped for {_STOPPED_SECONDS:g} s")
        self._watched, self.stopped, self._timer = WeakKeyDictionary(watched), stopped, None
        if watched:
            self._look_later()


def _stat(pid: int) -> tuple[str, str]:
    """The letter of the state of a process, and when it has started; empty if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text() if pid > 0 else ""
    except OSError:
        return "", ""
    # The name, in parentheses, may hold any characters.
    fields = text.rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")
