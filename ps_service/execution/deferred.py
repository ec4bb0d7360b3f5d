"""Deferred: a result that is not there yet, and for which no thread waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Deferred:
    """What `@async_execution` makes of a call.

    Args:
        future: Has `add_done_callback`, and `result`, `value` or `wait`.
        finish: Makes the call's result of the future's.
        cancel: Called when nobody wants the result any more.

    Raises:
        TypeError: It is not a future.
    """

    def __init__(self, future: Any, finish: Callable[[Any], Any], cancel: Callable[[], None] | None = None) -> None:
        if not callable(getattr(future, "add_done_callback", None)):
            raise TypeError(
                f"a function decorated with @async_execution must return a future, not a {type(future).__name__}"
            )
        self._future = future
        self._finish = finish
        self._cancel = cancel

    def when_done(self, do: Callable[[], None]) -> None:
        """Has something done once the result is there, in whichever thread brings it."""
        self._future.add_done_callback(lambda _: do())

    def result(self) -> Any:
        """The result of the call.

        Raises:
            Exception: Whatever the future holds instead of a result.
        """
        for name in ("result", "value", "wait"):
            if hasattr(self._future, name):
                return self._finish(getattr(self._future, name)())
        raise TypeError(f"a {type(self._future).__name__} does not tell its result")

    def drop(self) -> None:
        """Nobody wants the result any more."""
        if self._cancel is not None:
            self._cancel()
