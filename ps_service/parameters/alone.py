"""Holds a lock that other threads may hold for long, and raises in threads that must not block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ps_wire.errors import DeadlineExceededError
from ps_wire.runtime.scopes import current_scope

if TYPE_CHECKING:
    from types import TracebackType

    from ps_wire.runtime.locks import ReportingLock


class WouldBlock(Exception):
    """A thread that must not block would have to wait."""


class _Threads(Protocol):
    """Knows which threads must not block."""

    @property
    def is_nonblocking(self) -> bool:
        """Whether this thread must not block."""


class Alone:
    """Holds a lock while its block runs.

    Entering raises `WouldBlock` if another thread holds the lock and this thread must not block, and
    `DeadlineExceededError` if the caller's deadline passes before the lock is free.

    Args:
        threads: Knows whether this thread may block.
        lock: The lock.
    """

    __slots__ = ("_lock", "_threads")

    def __init__(self, threads: _Threads, lock: ReportingLock) -> None:
        self._threads = threads
        self._lock = lock

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        if self._threads.is_nonblocking:
            raise WouldBlock
        scope = current_scope.get()
        if not self._lock.acquire(seconds=None if scope is None else scope.within(None)):
            raise DeadlineExceededError("the lock was held by others until the deadline")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
