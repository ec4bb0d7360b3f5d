"""A result that arrives later, and for which no thread waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Deferred:
    """The result of a call whose function is marked `@async_execution`, by a future of any library.

    `finish` makes the result from that of the future, and `cancel` is called when that is no longer wanted. Raises
    `TypeError` for an object that has no `add_done_callback`.
    """

    def __init__(
        self,
        future: Any,
        finish: Callable[[Any], Any] = lambda result: result,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        if not callable(getattr(future, "add_done_callback", None)):
            raise TypeError(
                "Functions decorated with @rpc.async_function must return a torch.futures.Future object, or one of "
                f"this project, not a {type(future).__name__}"
            )
        self._future = future
        self._finish = finish
        self._cancel = cancel

    def when_done(self, do: Callable[[], None]) -> None:
        """Calls `do` once the result is there, in the thread that sets it."""
        self._future.add_done_callback(lambda _: do())

    def result(self) -> Any:
        """The result of the call. Raises the exception that the future holds."""
        for name in ("result", "value", "wait"):
            if hasattr(self._future, name):
                return self._finish(getattr(self._future, name)())
        raise TypeError(f"a {type(self._future).__name__} has no result(), value() or wait()")

    def drop(self) -> None:
        """Cancels the future, because its result is no longer wanted."""
        if self._cancel is not None:
            self._cancel()
