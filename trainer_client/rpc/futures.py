"""Futures of calls. They are futures of torch, which can be awaited as well."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar, cast

import torch

from ps_wire.codec.names import full_name
from ps_wire.errors import remote_error
from ps_wire.runtime.failures import Failure
from ps_wire.runtime.noop import noop
from trainer_client.pending import Pending, cancel_all
from trainer_client.rpc.completions import complete_later
from trainer_client.rpc.current import agent, has_agent

_log = logging.getLogger(__name__)

T = TypeVar("T")
S = TypeVar("S")


class Future(torch.futures.Future[T]):
    """The result of a call that may not be done yet. Call `wait()` in a plain thread, or `await` it.

    It can be passed to `torch.futures.wait_all` and `torch.futures.collect_all`. The future of torch's C++ part that
    these use is completed by the thread that waits for this one; by another thread, if none waits.

    Args:
        pending: The call; without it, the result is set with `set_result` or `set_exception`.
        convert: Converts the result of `pending`, once, in the first thread that reads it.
        devices: The devices of tensors in a result that is set; as in torch.
    """

    def __init__(
        self,
        pending: Pending[Any] | None = None,
        convert: Callable[[Any], T] | None = None,
        *,
        devices: Sequence[int | str | torch.device] | None = None,
    ) -> None:
        torch._C.Future.__init__(self, [torch.device(each) for each in devices] if devices else [])
        self._convert = convert
        # The converted result, once it was read.
        self._kept: list[T] = []
        self._own = pending is None
        self._once = threading.Lock()
        # Run in this order; None once they have begun.
        self._callbacks: list[Callable[[], None]] | None = []
        self._lock = threading.Lock()
        # One entry for each thread that waits; it will complete torch's future.
        self._readers: list[None] = []
        self._pending: Pending[Any] = Pending(None, noop) if pending is None else pending
        if pending is not None:
            pending.on_done(self._arrived)

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the result and returns it.

        Args:
            timeout: Seconds to wait; None is no limit. The call goes on when they are over.

        Raises:
            DeadlineExceededError: The result did not arrive in time.
            Exception: The error of the call.
        """
        self._readers.append(None)
        try:
            return self._converted(self._pending.wait(timeout))
        finally:
            self._read()

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

        The function runs in a compute thread of this process, or at once if the future is done. Its error is a
        `RuntimeError`, as in torch, and also an instance of the type that the function raised.
        """
        if not callable(callback):
            raise TypeError(
                f"incompatible function arguments. then() takes a function, not a {type(callback).__name__}"
            )
        following: Future[S] = Future()

        def run(done: Future[T]) -> None:
            try:
                result = callback(done)
            except BaseException as error:
                following._settle(Failure(_of_callback(error)))
            else:
                following.set_result(result)

        self.add_done_callback(run)
        return following

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Calls a function with this future once it is done. An exception of the function is logged.

        The functions run in the order in which they were added, in a compute thread of this process; or at once if the
        future is done. In a process that is in no group, they run in the thread that sets the result.
        """
        context = contextvars.copy_context()

        def run() -> None:
            try:
                context.run(callback, self)
            except Exception:
                _log.exception("a callback of a future failed")

        with self._lock:
            waiting = self._callbacks
            runs_now = waiting is None or (not waiting and self.done())
            is_first = not waiting
            if waiting is not None and not runs_now:
                waiting.append(run)
        if runs_now:
            run()
        elif is_first and self._own and not has_agent():
            self._pending.on_done(self._run_callbacks)
        elif is_first:
            self._pending.on_done(partial(agent().run_later, self._run_callbacks))

    def _run_callbacks(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks or [], None
        with ExitStack() as stack:  # each runs, also if one before it has raised
            for run in reversed(callbacks):
                stack.callback(run)

    def set_result(self, result: T) -> None:
        """Sets the result of a future that was made without a call.

        Raises:
            RuntimeError: It is done already, or belongs to a call.
        """
        self._settle(lambda: result)

    def set_exception(self, error: BaseException) -> None:  # type: ignore[override]
        """Sets the error of a future that was made without a call.

        Raises:
            RuntimeError: It is done already, or belongs to a call.
            TypeError: `error` is no exception.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"set_exception() takes an exception, not a {type(error).__name__}")
        self._settle(Failure(error))

    def cancel(self) -> None:
        """Cancels the call, also on the owner. Does nothing once the future is done."""
        self._pending.cancel()
        if self._own:
            self._complete()

    def __await__(self) -> Generator[Any, None, T]:
        # On the loop that brings the answers another thread completes torch's future, which may call functions.
        if asyncio._get_running_loop() is self._pending._loop:
            return self._converted((yield from self._pending.__await__()))
        self._readers.append(None)
        try:
            return self._converted((yield from self._pending.__await__()))
        finally:
            self._read()

    def __reduce__(self) -> Any:
        raise TypeError("a future cannot be sent: send its result, or return it from an @async_execution function")

    def _settle(self, outcome: Callable[[], Any]) -> None:
        if not self._own or not self._pending.resolve(outcome):
            raise RuntimeError("Future can only be marked completed once, and not at all if it belongs to a call")
        self._complete()

    def _converted(self, result: Any) -> T:
        if self._convert is None:
            return cast("T", result)
        with self._lock:
            if not self._kept:
                self._kept.append(self._convert(result))
            return self._kept[0]

    # The future of torch's C++ part

    def _read(self) -> None:
        self._readers.pop()
        if self._pending.settled:
            self._complete()

    def _arrived(self) -> None:
        if not self._readers:
            complete_later(self._complete, self._pending._loop)

    def _complete(self) -> None:
        """Completes torch's future, once."""
        if not self._once.acquire(blocking=False):
            return
        value: Any = None
        try:
            value = self._converted(self._pending.result())
        except BaseException as error:
            # An exception refers to frames, and these to the future: the garbage collector does not see through C++.
            torch._C.Future._set_unwrap_func(self, partial(_raise_copy, _copy(error)))
        torch._C.Future.set_result(self, value)


def wait_all(futures: Iterable[torch._C.Future[Any]], timeout: float | None = None) -> list[Any]:
    """Waits for all futures and returns their results, in order. Stops waiting at the first error.

    Args:
        futures: The futures, ours and torch's.
        timeout: Seconds for all of them together; None is no limit.

    Raises:
        DeadlineExceededError: Not all of them were done in time.
        Exception: The error of the future that failed first. The others go on.
    """
    listed = _listed(futures)
    ours = [each for each in listed if isinstance(each, Future)]
    for future in ours:
        future._readers.append(None)
    try:
        _all_done(listed).wait(timeout)
    finally:
        for future in ours:
            future._read()
    return [future.wait() for future in listed]


def collect_all(futures: Iterable[torch._C.Future[Any]]) -> Future[list[Any]]:
    """A future of the list of all the futures, done when all of them are, or when one has failed.

    Waiting for it raises the error of the future that failed first.
    """
    listed = _listed(futures)
    return Future(_all_done(listed), lambda _: listed)


def _listed(futures: Any) -> list[torch._C.Future[Any]]:
    listed: list[Any] = list(futures) if isinstance(futures, Iterable) else [None]
    if not all(isinstance(each, torch._C.Future) for each in listed):
        raise TypeError("incompatible function arguments: futures must be a list of futures, as rpc_async() gives them")
    return listed


def _all_done(futures: Sequence[torch._C.Future[Any]]) -> Pending[None]:
    """Done when all futures are; fails with the first error."""
    parts = [_pending_of(future) for future in futures]
    loop = next((part._loop for part in parts if part._loop is not None), None)
    whole: Pending[None] = Pending(loop, partial(cancel_all, parts))
    left = [len(parts)]
    lock = threading.Lock()

    def one_more(part: Pending[Any]) -> None:
        if part.error is not None:
            if part.failure is not None:
                part.failure.read()
            whole.resolve(Failure(part.error))
            return
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            whole.resolve(noop)

    if not parts:
        whole.resolve(noop)
    for part in parts:
        part.on_done(partial(one_more, part))
    return whole


def _pending_of(future: torch._C.Future[Any]) -> Pending[Any]:
    if isinstance(future, Future):
        return future._pending
    pending: Pending[Any] = Pending(None, noop)

    def done(future: torch._C.Future[Any]) -> None:
        try:
            result = future.value()
        except BaseException as error:
            pending.resolve(Failure(error))
        else:
            pending.resolve(lambda: result)

    future.add_done_callback(done)
    return pending


def _of_callback(error: BaseException) -> BaseException:
    if isinstance(error, RuntimeError) or not isinstance(error, Exception):
        return error
    made = remote_error(str(error), full_name(type(error)), kind=type(error))
    made.__cause__ = error
    return made


def _raise_copy(error: BaseException, _: object) -> None:
    """Raises a copy each time, so that what C++ holds gets no traceback."""
    raise _copy(error)


def _copy(error: BaseException) -> BaseException:
    """An equal exception without a traceback."""
    with suppress(Exception):
        return copy.copy(error)
    # Its `__init__` takes other arguments than `args`.
    kind = type(error)
    with suppress(Exception):
        made = kind.__new__(kind, *error.args)
        made.__dict__.update(error.__dict__)
        return made
    return error
