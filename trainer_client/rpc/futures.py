"""Futures: results that are on their way, with the methods of torch's."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar, cast

from ps_wire.errors import DeadlineExceededError
from trainer_client.pending import Pending
from trainer_client.rpc.current import agent

_log = logging.getLogger(__name__)

T = TypeVar("T")
S = TypeVar("S")


class Future(Generic[T]):
    """A result that is on its way. Wait for it in a plain thread, or `await` it.

    Args:
        pending: What it stands for; without it, somebody has to call `set_result` or `set_exception`.
        convert: Makes the result of what `pending` gives, in the thread that waits.
    """

    def __init__(self, pending: Pending[Any] | None = None, convert: Callable[[Any], T] | None = None) -> None:
        self._pending: Pending[Any] = pending if pending is not None else Pending(None, _nothing)
        self._convert = convert
        self._own = pending is None

    def wait(self, timeout: float | None = None) -> T:
        """The result.

        Args:
            timeout: Seconds to wait here; None for as long as it takes.

        Raises:
            DeadlineExceededError: It did not come in time.
            Exception: Whatever there is instead of a result.
        """
        return self._converted(self._pending.wait(timeout))

    def value(self) -> T:
        """The result, which must be there.

        Raises:
            RuntimeError: It is not there yet.
            Exception: Whatever there is instead of a result.
        """
        if not self.done():
            raise RuntimeError("the future is not done yet: wait() for it")
        return self.wait()

    def done(self) -> bool:
        """Whether the result, or an error, is there."""
        return self._pending.done()

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """What a function makes of this future once it is done; its errors become those of the new future.

        The function runs in a thread of the owner here, or now, if the future is done.
        """
        if not callable(callback):
            raise TypeError(f"then() takes a function, not a {type(callback).__name__}")
        following: Future[S] = Future()

        def run(done: Future[T]) -> None:
            try:
                following.set_result(callback(done))
            except BaseException as error:
                following.set_exception(error)

        self.add_done_callback(run)
        return following

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Calls a function with this future once it is done; what it raises is logged."""
        context = contextvars.copy_context()

        def run() -> None:
            try:
                context.run(callback, self)
            except Exception:
                _log.exception("a callback of a future failed")

        if self.done():
            run()
        else:
            here = agent()
            self._pending.on_done(lambda: here.run_later(run))

    def set_result(self, result: T) -> None:
        """Gives a future that was made here its result.

        Raises:
            RuntimeError: It has one, or is not of those.
        """
        self._settle(lambda: result)

    def set_exception(self, error: BaseException) -> None:
        """Gives a future that was made here an error in place of a result.

        Raises:
            RuntimeError: It is done, or not of those.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"an error is an exception, not a {type(error).__name__}")

        def outcome() -> Any:
            raise error

        self._settle(outcome)

    def cancel(self) -> None:
        """Gives up what is on its way; the owner is told. No effect once done."""
        self._pending.cancel()

    def __await__(self) -> Generator[Any, None, T]:
        result = yield from self._pending.__await__()
        return self._converted(result)

    def __reduce__(self) -> Any:
        raise TypeError("a future does not travel: send what it holds, or return it from an @async_execution function")

    def _settle(self, outcome: Callable[[], Any]) -> None:
        if not self._own or self.done():
            raise RuntimeError("a future gets its result once, from whoever made it")
        self._pending.resolve(outcome)

    def _converted(self, result: Any) -> T:
        return cast(T, result) if self._convert is None else self._convert(result)


def wait_all(futures: Iterable[Future[Any]], timeout: float | None = None) -> list[Any]:
    """The results of all futures, once they are there.

    Args:
        futures: What to wait for.
        timeout: Seconds for all of them together; None for as long as it takes.

    Raises:
        DeadlineExceededError: They were not all there in time.
        Exception: The error of the first in the list that has one, after all are done.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    results: list[Any] = []
    failure: BaseException | None = None
    for future in futures:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            results.append(future.wait(left))
        except DeadlineExceededError:
            if not future.done():
                raise
            failure = failure or _error_of(future)
        except BaseException as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results


def collect_all(futures: Iterable[Future[Any]]) -> Future[list[Future[Any]]]:
    """A future of all the futures, done when they are."""
    listed = list(futures)
    collected: Future[list[Future[Any]]] = Future()
    left = [len(listed)]
    lock = threading.Lock()

    def one_more(_: Future[Any]) -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            collected.set_result(listed)

    if not listed:
        collected.set_result(listed)
    for future in listed:
        future.add_done_callback(one_more)
    return collected


def _nothing() -> None:
    """There is nobody to be told that a future which was made here is not wanted any more."""


def _error_of(future: Future[Any]) -> BaseException:
    try:
        future.wait()
    except BaseException as error:
        return error
    raise AssertionError("a future that failed has an error")
