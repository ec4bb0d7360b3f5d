"""Locks that may be held for long. A pool's thread that waits for one reports that, and is replaced meanwhile."""

from __future__ import annotations

import threading
from typing import Final

from ps_wire.runtime.scopes import waiting


class ReportingLock:
    """A reentrant lock for work that takes longer than microseconds. A thread that waits for it reports that, so that
    the pool can replace it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock: Final = threading.RLock()

    def acquire(self, blocking: bool = True, seconds: float | None = None) -> bool:
        """Acquires the lock, within some seconds if they are given; returns whether it was acquired."""
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        with waiting:
            return self._lock.acquire(timeout=-1 if seconds is None else seconds)

    def release(self) -> None:
        """Gives the lock back."""
        self._lock.release()

    def locked(self) -> bool:
        """Whether another thread has the lock at this moment."""
        if not self._lock.acquire(blocking=False):
            return True
        self._lock.release()
        return False

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
