"""Deferred: a result that is not there yet, and for which no thread waits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


class Deferred:
    """What `@async_execution` makes of a call.

    Args:
        future: Has `add_done_callback`, and `result`, `value` or `wait`.
        finish: Makes the call's result of the future's.
        held: What the call has borrowed until then.

    Raises:
        TypeError: It is not a future.
    """

    def __init__(self, future: Any, finish: Callable[[Any], Any], held: ExitStack | None = None) -> None:
        if not callable(getattr(future, "add_done_callback", None)):
            if held is not None:
                held.close()
            raise TypeError(
                f"a function that wears @async_execution must return a future, not a {type(future).__name__}"
            )
        self._future = future
        self._finish = finish
        self._held = held or ExitStack()

    def when_done(self, do: Callable[[], None]) -> None:
        """Has something done once the result is there, in whichever thread brings it."""
        self._future.add_done_callback(lambda _: do())

    def result(self) -> Any:
        """The result of the call.

        Raises:
            Exception: Whatever the future holds instead of a result.
        """
        with self._held:
            for name in ("result", "value", "wait"):
                if hasattr(self._future, name):
                    return self._finish(getattr(self._future, name)())
            raise TypeError(f"a {type(self._future).__name__} does not tell its result")

    def drop(self) -> None:
        """Nobody wants the result any more."""
        self._held.close()
