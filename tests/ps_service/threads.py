"""Threads for tests of what happens at the same moment, without a single sleep."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ps_service.parameters.locks import ParameterLocks

PATIENCE = 60.0
"""Seconds after which a test says that something hangs."""


class Worker:
    """A function in a thread of its own; a thread that hangs fails the test and does not keep the process alive."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> Any:
        """What the function returned or raised."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the thread hangs"
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error


class Watched(threading.Condition):
    """A condition that tells when a thread begins to wait for it.

    Args:
        lock: Its lock; one of its own if None.
    """

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
        self._began = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self._began.release()
        return super().wait(timeout)

    def seen(self) -> None:
        """Returns once a thread waits, one call for each time."""
        assert self._began.acquire(timeout=PATIENCE), "no thread waits"

    @property
    def unused(self) -> bool:
        """Whether no thread has waited since the last `seen`."""
        return not self._began.acquire(blocking=False)


def wait_for(event: threading.Event) -> None:
    """Returns once the event is set."""
    assert event.wait(PATIENCE), "the event does not come"


@contextmanager
def in_a_hurry(locks: ParameterLocks) -> Iterator[None]:
    """Has this thread raise `WouldBlock` where it would have to wait."""
    locks.this_thread.nonblocking = True
    try:
        yield
    finally:
        locks.this_thread.nonblocking = False
