"""Peer process: what the kernel tells of the process at the other end of a shared-memory connection.

A trainer that is stopped (SIGSTOP, a debugger) gives no sign of life, and must not keep what it holds without end. One
that computes need not give any: a single call into C may keep Python from running for minutes.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import NamedTuple


class State(enum.Enum):
    """How a process is."""

    ALIVE = "alive"
    STOPPED = "stopped"
    GONE = "gone"


class PeerProcess:
    """A process of this host.

    Args:
        pid: Its number, as this process sees it.

    Raises:
        LookupError: It cannot be seen from here: it lives in a PID namespace of its own, or is gone.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        found = _stat(pid)
        if found is None:
            raise LookupError(f"process {pid} cannot be seen from here")
        # A number may be given to another process later.
        self._started = found.started

    @property
    def state(self) -> State:
        """How it is now."""
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
    # The name, in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], fields[19]) if len(fields) > 19 else None
