"""The lock of an optimizer, which others may hold for long."""

from __future__ import annotations

from typing import Protocol

from ps_wire.errors import DeadlineExceededError
from ps_wire.runtime.locks import ReportingLock
from ps_wire.runtime.scopes import current_scope


class WouldBlock(BaseException):
    """A thread that must not block would have to wait. Hosted code that handles exceptions lets it pass."""


class _Threads(Protocol):
    """Knows which threads must not block."""

    @property
    def is_nonblocking(self) -> bool:
        """Whether this thread must not block."""


class StepLock(ReportingLock):
    """A lock that knows deadlines, and threads that must not block.

    A block raises `WouldBlock` if another thread holds the lock and this thread must not block, and
    `DeadlineExceededError` if the caller's deadline passes before the lock is free.

    Args:
        threads: Knows whether this thread may block.
    """

    __slots__ = ("_threads",)

    def __init__(self, threads: _Threads) -> None:
        super().__init__()
        self._threads = threads

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        if self._threads.is_nonblocking:
            raise WouldBlock
        scope = current_scope.get()
        if not self.acquire(seconds=None if scope is None else scope.within(None)):
            raise DeadlineExceededError("the lock was held by others until the deadline")
