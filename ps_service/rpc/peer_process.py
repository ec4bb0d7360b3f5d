"""The state of the process at the other end of a shared-memory connection, from the kernel.

A trainer that is stopped (SIGSTOP, a debugger) must not hold memory of the owner without end. A trainer that computes
must keep its session, although a single call into C may keep Python from running for minutes.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import NamedTuple


class State(enum.Enum):
    """The state of a process."""

    ALIVE = "alive"
    STOPPED = "stopped"
    GONE = "gone"


class PeerProcess:
    """A process of this host. Raises `LookupError` if its PID is in another namespace, or it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        found = _stat(pid)
        if found is None:
            raise LookupError(f"process {pid} cannot be seen from here")
        # A PID may be used for another process later.
        self._started = found.started

    @property
    def state(self) -> State:
        """Its present state."""
        found = _stat(self.pid)
        if found is None or found.started != self._started or found.letter in "ZXx":
            return State.GONE
        return State.STOPPED if found.letter in "Tt" else State.ALIVE


class _Stat(NamedTuple):
    letter: str
    started: str


def _stat(pid: int) -> _Stat | None:
    """State and time of start of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text() if pid > 0 else ""
    except OSError:
        return None
    # The name, in parentheses, may hold any characters.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], fields[19]) if len(fields) > 19 else None
