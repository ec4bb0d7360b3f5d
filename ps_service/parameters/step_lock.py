"""The lock of an optimizer, which others may hold for long."""

from __future__ import annotations

import threading

from ps_wire.errors import DeadlineExceededError
from ps_wire.runtime.locks import ReportingLock
from ps_wire.runtime.scopes import current_scope


class WouldBlock(BaseException):
    """A thread that must not block would have to wait. Hosted code that handles exceptions lets it pass."""


class ThisThread(threading.local):
    """Whether a thread raises `WouldBlock` where it would have to wait, before anything has been changed. Not while
    hosted code runs, which must not be stopped halfway."""

    nonblocking = False


class StepLock(ReportingLock):
    """A lock that knows deadlines, and threads that must not block.

    A block raises `WouldBlock` if another thread holds the lock and this thread must not block, and
    `DeadlineExceededError` if the caller's deadline passes before the lock is free.
    """

    __slots__ = ("_this_thread",)

    def __init__(self, this_thread: ThisThread) -> None:
        super().__init__()
        self._this_thread = this_thread

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        if self._this_thread.nonblocking:
            raise WouldBlock
        scope = current_scope.get()
        if not self.acquire(seconds=None if scope is None else scope.within(None)):
            raise DeadlineExceededError("the lock was held by others until the deadline")
