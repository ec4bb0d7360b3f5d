"""The errors of the project, as one tree; each has one code on the wire.

PsError
├── InvalidArgumentError      you sent something that does not fit (also a ValueError)
├── UnknownNameError          no such object, method, parameter or optimizer (also a LookupError)
├── NotAllowedError           it exists, but is not on the owner's allow-list (also a PermissionError)
├── NameConflictError         the name is taken by something made with other arguments
├── StaleHandleError          the handle's object is gone
├── ForeignHandleError        the handle belongs to another owner
├── ContextEndedError         the context was ended by its trainer
├── ContextLostError          the owner no longer has this pass: run forward again
├── RemoteError               code hosted by the owner raised
├── NonFiniteGradientError    the optimizer refused NaN or infinity
├── TooLargeError             a message or nesting is over a limit
├── DeadlineExceededError     the call's time ran out (also a TimeoutError)
├── CancelledCallError        the call was cancelled on the way
├── OverloadedError           too many requests of this session at once
├── UnavailableError          the owner is draining, or cannot be reached (also a ConnectionError)
├── SessionLostError          the session is gone; whether the request ran is not known (also a ConnectionError)
├── InternalError             a fault of the owner itself
└── ClosedError               you closed this client (never on the wire)
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from ps_wire.v1 import errors_pb2
from ps_wire.v1.errors_pb2 import ErrorCode


class PsError(Exception):
    """Base of every error that this project raises."""

    code: ClassVar[ErrorCode] = ErrorCode.ERROR_INTERNAL


class InvalidArgumentError(PsError, ValueError):
    """The request cannot be understood or does not fit what it names; nothing was changed."""

    code = ErrorCode.ERROR_INVALID_ARGUMENT


class UnknownNameError(PsError, LookupError):
    """There is no object, method, parameter or optimizer of that name."""

    code = ErrorCode.ERROR_UNKNOWN_NAME


class NotAllowedError(PsError, PermissionError):
    """The class or method is not on the owner's allow-list."""

    code = ErrorCode.ERROR_NOT_ALLOWED


class NameConflictError(PsError):
    """A named object exists already and was made of another class or with other arguments."""

    code = ErrorCode.ERROR_NAME_CONFLICT


class StaleHandleError(PsError):
    """The handle's object was deleted, or freed when its last handle went."""

    code = ErrorCode.ERROR_STALE_HANDLE


class ForeignHandleError(PsError):
    """The handle belongs to another owner than the one that was asked."""

    code = ErrorCode.ERROR_FOREIGN_HANDLE


class ContextEndedError(PsError):
    """The context was ended by its trainer. Raised too when a request of it arrives late."""

    code = ErrorCode.ERROR_CONTEXT_ENDED


class ContextLostError(PsError):
    """The owner does not have the forward pass that is to be continued: run forward again."""

    code = ErrorCode.ERROR_CONTEXT_LOST


class RemoteError(PsError):
    """Code hosted by the owner raised.

    When that was one of Python's common exceptions, such as a `ValueError`, what is raised here is one as well.

    Attributes:
        remote_type: Full name of the exception's type on the owner, such as `builtins.ValueError`.
        remote_message: What the exception said.
        remote_traceback: The owner's traceback, as text.
    """

    code = ErrorCode.ERROR_REMOTE

    def __init__(self, message: str, remote_type: str = "", remote_traceback: str = "") -> None:
        super().__init__(message)
        self.remote_message = message
        self.remote_type = remote_type
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        text = f"{self.remote_type}: {self.remote_message}"
        return f"{text}\n\nOn the owner:\n{self.remote_traceback}" if self.remote_traceback else text


class NonFiniteGradientError(PsError):
    """A gradient holds NaN or infinity and the optimizer was told to refuse it; nothing was changed."""

    code = ErrorCode.ERROR_NON_FINITE_GRADIENT


class TooLargeError(PsError):
    """A message, or the nesting of its values, is over a limit."""

    code = ErrorCode.ERROR_TOO_LARGE


class DeadlineExceededError(PsError, TimeoutError):
    """The call's time ran out. The owner may have run it."""

    code = ErrorCode.ERROR_DEADLINE_EXCEEDED


class CancelledCallError(PsError):
    """The call was cancelled before its answer was sent. The owner may have run it."""

    code = ErrorCode.ERROR_CANCELLED


class OverloadedError(PsError):
    """Too many requests of this session are in flight, or too many bytes are held for it; wait for some of them."""

    code = ErrorCode.ERROR_OVERLOADED


class UnavailableError(PsError, ConnectionError):
    """The owner takes no new work (it is draining), or could not be reached in time."""

    code = ErrorCode.ERROR_UNAVAILABLE


class SessionLostError(PsError, ConnectionError):
    """The session is gone (its lease ran out, its operator ended it, or the owner restarted).

    Whether the request ran is not known.
    """

    code = ErrorCode.ERROR_SESSION_LOST


class InternalError(PsError):
    """A fault of the owner itself; its log has the details."""

    code = ErrorCode.ERROR_INTERNAL


class ClosedError(PsError):
    """This client, or the thing it lent you, was closed. Only raised locally."""


BY_CODE: dict[int, type[PsError]] = {int(cls.code): cls for cls in PsError.__subclasses__() if cls is not ClosedError}


def to_message(error: PsError) -> errors_pb2.Error:
    """What an error looks like on the wire."""
    if isinstance(error, RemoteError):
        return errors_pb2.Error(
            code=error.code,
            message=_text(error.remote_message),
            remote_type=_text(error.remote_type),
            traceback=_text(error.remote_traceback),
        )
    return errors_pb2.Error(code=error.code, message=_text(str(error)))


def from_message(message: errors_pb2.Error) -> PsError:
    """The exception to raise for an error that came over the wire."""
    cls = BY_CODE.get(message.code, InternalError)
    if cls is RemoteError:
        kind = _remote_kind(message.remote_type)
        return kind(message.message, message.remote_type, message.traceback)
    return cls(message.message)


_FAMILIAR: tuple[type[Exception], ...] = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, IndexError, KeyError, LookupError, NameError),
    *(NotImplementedError, OverflowError, RuntimeError, TypeError, ValueError, ZeroDivisionError),
)
"""Exceptions of Python's own that are raised here as what they were there, besides being a `RemoteError`."""


@cache
def _remote_kind(remote_type: str) -> type[RemoteError]:
    for kind in _FAMILIAR:
        if remote_type == f"builtins.{kind.__name__}":
            return type(f"Remote{kind.__name__}", (RemoteError, kind), {"__doc__": f"A {kind.__name__} on an owner."})
    return RemoteError


def _text(value: str) -> str:
    """Text that fits into a message: what UTF-8 has no form for is written as an escape."""
    return value.encode(errors="backslashreplace").decode()
