"""Waits for a condition on a directory, for which no thread waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Wait:
    """A wait, under the lock of the directory, until a condition returns a result (not None) or raises an error.

    If the wait expires, `on_expiry` returns the result or raises the error. `future` gets either.
    """

    def __init__(self, lock: threading.RLock, condition: Callable[[], Any], on_expiry: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._lock = lock
        self._condition = condition
        self._on_expiry = on_expiry

    def check(self) -> None:
        """Checks the condition again."""
        if not self.future.done():
            self._end(self._condition)

    def expire(self) -> None:
        """Ends the wait, because its time is over or the caller has gone."""
        with self._lock:
            if not self.future.done():
                self._end(self._on_expiry)

    def _end(self, outcome: Callable[[], Any]) -> None:
        try:
            found = outcome()
        except Exception as error:
            self.future.set_exception(error)
        else:
            if found is not None:
                self.future.set_result(found)
