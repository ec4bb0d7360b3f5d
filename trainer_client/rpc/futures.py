"""Futures of calls, with the methods of `torch.futures.Future`."""

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
    """The result of a call that may not be done yet. Call `wait()` in a plain thread, or `await` it.

    Args:
        pending: The call; without it, the result is set with `set_result` or `set_exception`.
        convert: Converts the result of `pending`, in the thread that waits.
    """

    def __init__(self, pending: Pending[Any] | None = None, convert: Callable[[Any], T] | None = None) -> None:
        self._pending: Pending[Any] = pending if pending is not None else Pending(None, _nothing)
        self._convert = convert
        self._own = pending is None

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the result and returns it.

        Args:
            timeout: Seconds to wait; None is no limit. The call goes on when they are over.

        Raises:
            DeadlineExceededError: The result did not arrive in time.
            Exception: The error of the call.
        """
        return self._converted(self._pending.wait(timeout))

    def value(self) -> T:
        """The result of a future that is done.

        Raises:
            RuntimeError: It is not done yet.
            Exception: The error of the call.
        """
        if not self.done():
            raise RuntimeError("the future is not done yet: wait() for it")
        return self.wait()

    def done(self) -> bool:
        """Whether the result, or an error, is there."""
        return self._pending.done()

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """Calls a function with this future once it is done, and returns a future of its result or error.

        The function runs in a compute thread of this process, or at once if the future is done.
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
        """Calls a function with this future once it is done. An exception of the function is logged."""
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
        """Sets the result of a future that was made without a call.

        Raises:
            RuntimeError: It is done already, or belongs to a call.
        """
        self._settle(lambda: result)

    def set_exception(self, error: BaseException) -> None:
        """Sets the error of a future that was made without a call.

        Raises:
            RuntimeError: It is done already, or belongs to a call.
            TypeError: `error` is no exception.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"set_exception() takes an exception, not a {type(error).__name__}")

        def outcome() -> Any:
            raise error

        self._settle(outcome)

    def cancel(self) -> None:
        """Cancels the call, also on the owner. Does nothing once the future is done."""
        self._pending.cancel()

    def __await__(self) -> Generator[Any, None, T]:
        result = yield from self._pending.__await__()
        return self._converted(result)

    def __reduce__(self) -> Any:
        raise TypeError("a future cannot be sent: send its result, or return it from an @async_execution function")

    def _settle(self, outcome: Callable[[], Any]) -> None:
        if not self._own or self.done():
            raise RuntimeError("the result of a future can be set once, and not at all if it belongs to a call")
        self._pending.resolve(outcome)

    def _converted(self, result: Any) -> T:
        return cast(T, result) if self._convert is None else self._convert(result)


def wait_all(futures: Iterable[Future[Any]], timeout: float | None = None) -> list[Any]:
    """Waits for all futures and returns their results, in order.

    Args:
        futures: The futures.
        timeout: Seconds for all of them together; None is no limit.

    Raises:
        DeadlineExceededError: Not all of them were done in time.
        Exception: The error of the first future that failed, after all are done.
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
    """A future of the list of all the futures, done when all of them are."""
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
    """Cancels nothing: a future that was made without a call has no owner to tell."""


def _error_of(future: Future[Any]) -> BaseException:
    try:
        future.wait()
    except BaseException as error:
        return error
    raise AssertionError("a future that failed has an error")
