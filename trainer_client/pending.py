"""`Pending`: the result of a call that may not be done yet."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from ps_wire.errors import CancelledCallError, ClosedError, DeadlineExceededError
from ps_wire.numbers import check_timeout
from ps_wire.runtime import failures, forks
from ps_wire.runtime.failures import Failure, Origin, failure_of, shortened
from ps_wire.runtime.scopes import waiting
from ps_wire.runtime.threads import BLOCKING
from ps_wire.runtime.unawaited import Unawaited

_log = logging.getLogger(__name__)

T = TypeVar("T")
Outcome = Callable[[], T]
"""Returns the result, or raises the error."""

DEFAULT: Final = -1.0
"""The timeout of a call that takes the default of the client's settings."""

_NOT_YET: Final[Any] = object()


class Pending(Unawaited, Generic[T]):
    """The result of a remote operation, which returns it at once, before the answer is there.

    In asyncio, `await` it: one at a time, or many with `asyncio.gather`. In a plain thread, call `wait`. Several tasks
    and threads may do so; all get the same result. Cancelling the task that awaits it cancels the request.

    An error that nobody reads is reported in the log if the program has made the call (see `subject`).

    Args:
        loop: The client's event loop, if the answer arrives there.
        cancel: Called when it is cancelled.

    Attributes:
        settled: Whether the result or an error is there. Unlike `done`, this does not ask for a result that stays away.
        is_lazy: Whether the result stays away until somebody asks for it.
        hurry: Sends what is kept to be sent with others, on the client's loop, when a task begins to wait; None if it
            was sent.
        origin: What the program has called; None if that is not told.
    """

    # Defaults of the class, because most of them stay.
    settled = False
    is_lazy = False
    hurry: Callable[[], object] | None = None
    origin: Origin | None = None
    _outcome: Outcome[T] | None = None
    _value: T = _NOT_YET
    _error: BaseException | None = None
    _trace: TracebackType | None = None
    _wakers: tuple[Callable[[], object], ...] = ()

    def __init__(self, loop: asyncio.AbstractEventLoop | None, cancel: Callable[[], object] | None = None) -> None:
        self._loop = loop
        self._cancel = cancel
        self._mutex = threading.Lock()
        if failures.IS_DEBUGGING:
            self._made_at = failures.caller()

    @classmethod
    def run(cls, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> Pending[T]:
        """Runs a coroutine on the client's loop. May be called from any thread.

        Raises:
            ClosedError: The client is closed, or belongs to the parent of this forked process.
        """
        if forks.is_foreign(loop):
            work.close()
            raise forks.refusal()
        pending = cls(loop)

        def start() -> None:
            if pending.settled:
                work.close()  # it was cancelled before it could begin
                return
            task = loop.create_task(work)
            pending._cancel = partial(loop.call_soon_threadsafe, task.cancel)
            task.add_done_callback(ended)

        def ended(task: asyncio.Task[T]) -> None:
            outcome = _outcome_of(task)
            if type(outcome) is Failure and pending.origin is None:
                pending.origin = failures.Origin(failures.name_of(task))
            pending.resolve(outcome)

        try:
            if asyncio._get_running_loop() is loop:
                start()
            else:
                loop.call_soon_threadsafe(start)
        except RuntimeError:
            work.close()
            raise ClosedError("this client is closed, and so is its event loop") from None
        return pending

    @classmethod
    def in_thread(
        cls, loop: asyncio.AbstractEventLoop, function: Callable[..., T], *args: Any, cancel: Callable[[], None]
    ) -> Pending[T]:
        """Calls a function, which may wait, in a thread. Once begun, it is not cancelled."""
        if forks.is_foreign(loop):
            raise forks.refusal()
        pending = cls(loop, cancel)
        BLOCKING.start(partial(contextvars.copy_context().run, pending._call, function, args))
        return pending

    def _call(self, function: Callable[..., T], args: tuple[Any, ...]) -> None:
        if self.settled:
            return  # it was cancelled before it could begin
        try:
            result = function(*args)
        except BaseException as error:
            # Without this frame, which refers to the result, so that no cycle delays the report of an unread error.
            self.resolve(Failure(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)))
        else:
            self.resolve(result=result)

    def resolve(self, outcome: Outcome[T] | None = None, *, result: T = _NOT_YET) -> bool:
        """Sets the outcome, to be evaluated by the thread that reads it, or the result; says whether it was first."""
        with self._mutex:
            if self.settled:
                return False
            self._outcome, self._value = outcome, result
            self.settled = True
            wakers, self._wakers = self._wakers, ()
        if type(outcome) is Failure:
            self._failed(outcome)
        for wake in wakers:
            try:
                wake()
            except Exception:  # the others must hear of it
                _log.exception("a waiting task or thread could not be told that an answer is there")
        return True

    def _failed(self, failure: Failure) -> None:
        subject = self.subject
        if subject:
            of_pass = None if self.origin is None else self.origin.of_pass
            failure.concerns(subject, of_pass, self._made_at if failures.IS_DEBUGGING else "")

    def done(self) -> bool:
        """Whether the result or an error is there."""
        if not self.settled and self.is_lazy:
            self._wanted()
        return self.settled

    def _wanted(self) -> None:
        """Called when a lazy result is not there, and is waited for, or asked about."""

    def cancel(self) -> None:
        """Cancels the request, also on the owner. Every wait ends with a `CancelledCallError`. No effect once done."""
        if not self.settled:
            error = CancelledCallError("the call was cancelled; the owner may have run it all the same")
            if self.resolve(Failure(error)):
                self._when_cancelled()

    def _when_cancelled(self) -> None:
        if self._cancel is not None:
            self._cancel()

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the result in a plain thread, and returns it.

        Args:
            timeout: Seconds to wait; None is no limit. The call itself goes on when they are over.

        Raises:
            InvalidArgumentError: `timeout` is no time.
            DeadlineExceededError: The answer did not arrive in time.
            RuntimeError: This is the thread of the client's own event loop, which would wait for itself.
            ClosedError: The parent of this forked process made the call.
            Exception: The error of the operation.
        """
        if timeout is not None:
            check_timeout(timeout)
        if not self.settled:
            if self._loop is not None and forks.is_foreign(self._loop):
                raise forks.refusal()
            if self._loop is not None and asyncio._get_running_loop() is self._loop:
                raise RuntimeError("wait() would block the event loop that has to bring the answer: use await")
            woken = threading.Lock()
            woken.acquire()
            self.on_done(woken.release)
            try:
                with waiting:
                    came = woken.acquire(timeout=-1 if timeout is None else timeout)
                if not came:
                    raise DeadlineExceededError(f"no answer within {timeout:g} s; the call goes on")
            except KeyboardInterrupt:
                self.cancel()
                raise
        return self.result()

    def __await__(self) -> Generator[Any, None, T]:
        if not self.settled:
            loop = asyncio.get_running_loop()
            if loop is self._loop:
                if self.hurry is not None:
                    self.hurry()
            elif self._loop is not None and forks.is_foreign(self._loop):
                raise forks.refusal()
            future: asyncio.Future[None] = loop.create_future()
            # Cancelling from another thread resolves there.
            self.on_done(partial(_wake, loop, threading.get_ident(), future))
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()

    def on_done(self, wake: Callable[[], Any]) -> None:
        """Calls a function once the result is there, in the thread that sets it; at once if it is there already."""
        with self._mutex:
            waits = not self.settled
            if waits:
                self._wakers = (*self._wakers, wake)
        if not waits:
            wake()
        elif self.is_lazy:
            self._wanted()

    def forget(self, wake: Callable[[], Any]) -> None:
        """Removes a function that `on_done` was given, and cancels the request if no other caller waits for it."""
        with self._mutex:
            self._wakers = tuple(each for each in self._wakers if each is not wake)
        if not self._is_used():
            self.cancel()

    def _is_used(self) -> bool:
        """Whether a caller waits for the result."""
        return bool(self._wakers)

    def result(self) -> T:
        """The result, or the error of the operation. Must be done."""
        with self._mutex:
            assert self.settled
            if self._outcome is not None:
                try:
                    self._value = self._outcome()
                except BaseException as error:
                    self._error = shortened(error)
                    self._trace = error.__traceback__
                # It may keep the arguments of the call.
                self._outcome = None
        if self._error is not None:
            # Every caller gets the frames of its own program only.
            raise self._error.with_traceback(self._trace)
        return self._value

    @property
    def error(self) -> BaseException | None:
        """The error that it was resolved with; None for an error that shows when the result is read."""
        outcome = self._outcome
        return outcome.error if type(outcome) is Failure else self._error

    @property
    def failure(self) -> Failure | None:
        """The failure that it was resolved with, while that was not read."""
        return self._outcome if type(self._outcome) is Failure else None

    @property
    def title(self) -> str:
        """What it asks for, in messages."""
        return "a call"

    @property
    def subject(self) -> str:
        """What the program has asked for with it, for the report of an error that nobody reads; empty for no report."""
        return "" if self.origin is None else self.origin.subject

    def __bool__(self) -> bool:
        raise TypeError("a Pending has no truth value: await it, or call wait()")

    def __repr__(self) -> str:
        return f"<Pending {'done' if self.settled else 'on its way'}>"


class Joined(Pending[T]):
    """A result that is made from those of several, in the thread that reads it; or the first error, once all are done.

    Cancelling it cancels all of them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        parts: Iterable[Pending[Any]],
        read: Callable[[list[Any]], T],
        title: str = "a call",
    ) -> None:
        parts = tuple(parts)
        # Not methods, which would be a cycle, and hold the results until the garbage collector comes.
        super().__init__(loop, partial(cancel_all, parts))
        self.hurry = partial(_hurry, parts)
        self._title = title
        when_all_done(iter(parts), partial(self._all_done, parts, read))

    def _all_done(self, parts: tuple[Pending[Any], ...], read: Callable[[list[Any]], T]) -> None:
        """Called once all are done, in the thread that sets the last result."""
        self.resolve(partial(_read, parts, read))

    @property
    def title(self) -> str:
        return self._title


def _hurry(parts: Iterable[Pending[Any]]) -> None:
    for part in parts:
        if part.hurry is not None:
            part.hurry()


def _read(parts: Iterable[Pending[Any]], read: Callable[[list[Any]], T]) -> T:
    return read(results(parts))


def when_all_done(parts: Iterator[Pending[Any]], tell: Callable[[], Any]) -> None:
    """Calls a function once all are done, in the thread that sets the last result."""
    for part in parts:
        if not part.settled:
            part.on_done(partial(when_all_done, parts, tell))
            return
    tell()


def all_ended(loop: asyncio.AbstractEventLoop, parts: Iterable[Pending[Any]]) -> Pending[None]:
    """Done when all are, well or not. Cancelling it cancels none of them."""
    whole: Pending[None] = Pending(loop)
    when_all_done(iter(parts), partial(whole.resolve, result=None))
    return whole


def results(parts: Iterable[Pending[T]]) -> list[T]:
    """The results of several that are done, or the first error. Like `asyncio.gather`, this counts as reading all."""
    parts = list(parts)
    try:
        return [part.result() for part in parts]
    except BaseException:
        for part in parts:
            if (failure := part.failure) is not None:
                failure.read()
        raise


def cancel_all(parts: Iterable[Pending[Any]]) -> None:
    """Cancels all of them."""
    for part in parts:
        part.cancel()


def _outcome_of(task: asyncio.Task[T]) -> Outcome[T]:
    if task.cancelled():
        failure = Failure(ClosedError("the client was closed while this was running"))
        failure.read()  # asyncio does not report tasks that are cancelled either
        return failure
    error = task.exception()
    return task.result if error is None else failure_of(error)


def _wake(loop: asyncio.AbstractEventLoop, thread: int, future: asyncio.Future[None]) -> None:
    try:
        if threading.get_ident() != thread:
            loop.call_soon_threadsafe(_set, future)
        elif not future.done():
            future.set_result(None)
    except RuntimeError:
        pass  # the loop of the task that waited is closed


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
