"""Failures of operations, and tracebacks as programs see them. A failure that nobody reads is reported in the log, as
asyncio does for exceptions of tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from ps_wire.errors import CancelledCallError, PsError

if TYPE_CHECKING:
    from types import FrameType

_log = logging.getLogger("trainer_client")

_PACKAGES: Final = ("trainer_client", "ps_wire")

_SILENT: Final = (CancelledCallError, asyncio.CancelledError)
"""The program has cancelled what ends with one of these."""

_EXPECTED: Final = "_is_expected"

IS_DEBUGGING = sys.flags.dev_mode or bool(os.environ.get("PYTHONASYNCIODEBUG"))
"""The debug mode of asyncio: results remember the line of the program that asked for them, and tracebacks are whole."""

E = TypeVar("E", bound=BaseException)


class Origin(NamedTuple):
    """What a program has called: a method (empty for `forward`) of an object, a function, or what messages say instead;
    in a pass with the failures of that, for a recorded call also with its context and the call in the graph of that."""

    target: Any
    method: str = ""
    of_pass: PassFailures | None = None
    context: Any = None
    recorded: Any = None

    @property
    def title(self) -> str:
        """The class and the method, or the function."""
        target = self.target
        if isinstance(target, str):
            return target
        return f"{getattr(target, 'class_name', target)}.{self.method or 'forward'}"

    @property
    def subject(self) -> str:
        """A function, a method of a handle with the name of that, or what the target says of itself."""
        target, method = self.target, self.method
        class_name = getattr(target, "class_name", "")
        if not class_name:
            return f"{method} of {target}" if method else str(target)
        name = getattr(target, "name", "")
        return f"{class_name}.{method or 'forward'}{f' of {name!r}' if name else ''}"


def name_of(task: asyncio.Task[Any]) -> str:
    """The name of the coroutine of a task, for messages."""
    name: str = getattr(task.get_coro(), "__qualname__", "a task")
    return ".".join(part.lstrip("_") for part in name.partition(".<locals>")[0].split("."))


def expect(error: BaseException) -> None:
    """Lets no failure with this error be reported, because an exception of the program has brought it about."""
    setattr(error, _EXPECTED, True)


def caller() -> str:
    """File and line of the program that has called the trainer's packages."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame, _PACKAGES):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def caller_level() -> int:
    """The `stacklevel` with which a warning of the function that asks names the line of the program."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_ours(frame, _PACKAGES):
        frame, level = frame.f_back, level + 1
    return level


def shortened(error: E) -> E:
    """Leaves frames of this project out of the traceback of an error that goes to the program, but in debug mode.

    An error of this project says all in its text. Another that was raised in our code keeps that frame, because it may
    be a fault of ours.
    """
    if IS_DEBUGGING:
        return error
    kept: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        is_ours = _is_ours(trace.tb_frame, ("ps_service", *_PACKAGES))
        if not is_ours or (trace.tb_next is None and not isinstance(error, PsError)):
            kept.append(trace)
        trace = trace.tb_next
    last: TracebackType | None = None
    for each in reversed(kept):
        last = TracebackType(last, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return error.with_traceback(last)


def _is_ours(frame: FrameType, packages: tuple[str, ...]) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in packages


class PassFailures:
    """What a pass knows of the failures of its operations. `left` says that an exception has left the block of the
    pass, which says more than what failed."""

    # Defaults of the class, because nearly every pass needs nothing else.
    left = False
    _ended = False
    _kept: tuple[Failure, ...] = ()
    _raised: frozenset[tuple[type, str]] = frozenset()

    def keep(self, failure: Failure) -> None:
        """Delays the report of a failure until the block ends, because the program may still hear of the error."""
        if not self._ended:
            self._kept = (*self._kept, failure)

    def raised(self, error: BaseException) -> None:
        """An operation of the pass has raised this where the program sees it."""
        self._raised |= {(type(error), str(error))}

    def knows(self, error: BaseException) -> bool:
        """Whether the program has been told of such an error, by another operation or by the end of the block."""
        return self.left or (type(error), str(error)) in self._raised

    def end(self, error: BaseException | None = None) -> None:
        """The block has ended, with this exception or without one."""
        if error is not None:
            self.left = True
        self._ended = True
        self._kept = ()


class Failure:
    """The outcome of one or several operations that have failed, which raises their error when it is read. If it is
    garbage and was not read, the program has never heard of the error, and it is reported. Who reads it knows of its
    `cause`, the failure because of which this operation has failed, too."""

    __slots__ = ("__weakref__", "_cause", "_made_at", "_of_pass", "_others", "_read", "_title", "error")

    def __init__(self, error: BaseException, cause: Failure | None = None) -> None:
        self.error = error
        self._cause = cause
        self._read = isinstance(error, _SILENT) or getattr(error, _EXPECTED, False)
        self._title = self._made_at = ""
        self._others = 0
        self._of_pass: PassFailures | None = None

    def __call__(self) -> NoReturn:
        self.read()
        raise self.error

    def concerns(self, title: str, of_pass: PassFailures | None, made_at: str) -> None:
        """An operation that the program has asked for has this outcome. The title is what it called, and where;
        `made_at` is the line of the program, or empty."""
        if self._title:
            self._others += 1
            return
        self._title, self._of_pass, self._made_at = title, of_pass, made_at
        if of_pass is not None:
            of_pass.keep(self)

    @property
    def is_read(self) -> bool:
        """Whether the program is told of the error, by this operation or another, or has brought it about."""
        return self._read

    def read(self) -> None:
        """The program is told of the error."""
        if self._read:
            return
        failure: Failure | None = self
        of_pass = self._of_pass
        while failure is not None:
            failure._read = True
            of_pass = of_pass or failure._of_pass
            if of_pass is not None:
                of_pass.raised(failure.error)
            failure = failure._cause

    def report(self) -> None:
        """Reports it, once, unless the program knows of the error. What follows from another failure is left to that.
        The garbage collector calls this in any thread. As in asyncio, only the locks of `logging` are taken."""
        if self._read or not self._title or self._cause is not None:
            return
        self._read = True
        error = self.error
        if self._of_pass is not None and self._of_pass.knows(error):
            return
        others = f" and {self._others} more" if self._others else ""
        _log.error(
            "%s%s failed, and nobody awaited the result (%s): %s: %s",
            self._title,
            others,
            f"called at {self._made_at}" if self._made_at else "PYTHONASYNCIODEBUG=1 shows where it was called",
            type(error).__name__,
            error,
            # Errors of this project have traces of its own modules, and say all in their text.
            exc_info=None if isinstance(error, PsError) else (type(error), error, error.__traceback__),
        )

    def __del__(self) -> None:
        self.report()


class FailedBeforeError(Exception):
    """Raised by an operation that waits for another, which has failed. Both have the same `failure` then, so that the
    program knows of it once it has read one of them."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure


def failure_of(error: BaseException) -> Failure:
    """The outcome of an operation that has raised this."""
    return error.failure if isinstance(error, FailedBeforeError) else Failure(error)


@contextmanager
def told() -> Iterator[None]:
    """The program is told of the failure because of which the block fails, if it is that of another operation."""
    failure = None
    try:
        yield
    except FailedBeforeError as error:
        failure = error.failure
    if failure is not None:
        failure()
