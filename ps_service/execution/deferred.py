"""A result that arrives later, and for which no thread waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _unchanged(result: Any) -> Any:
    return result


class Deferred:
    """The result of a call whose function is marked `@async_execution`, by a future of any library.

    `finish` makes the result from that of the future, and `cancel` is called when that is no longer wanted. Raises
    `TypeError` for an object that has no `add_done_callback`.
    """

    def __init__(
        self,
        future: Any,
        finish: Callable[[Any], Any] = _unchanged,
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
        """The result of the call, once. Raises the exception that the future holds."""
        for name in ("result", "value", "wait"):
            if hasattr(self._future, name):
                try:
                    return self._finish(getattr(self._future, name)())
                finally:
                    self.forget()
        raise TypeError(f"a {type(self._future).__name__} has no result(), value() or wait()")

    def forget(self) -> None:
        """Drops the future and `finish`. A future refers to the request, by what it calls when it is done or by the
        traceback of its exception: the cycle would keep what the call has used until a garbage collection."""
        self._future, self._finish = None, _unchanged

    def drop(self) -> None:
        """Cancels the future, because its result is no longer wanted."""
        if self._cancel is not None:
            self._cancel()
