"""The errors of the project, as one tree; each has one code on the wire.

PsError                       also a RuntimeError, as the errors of torch.distributed.rpc are
├── InvalidArgumentError      an argument does not fit (also a ValueError)
├── UnknownNameError          no such object, parameter, optimizer or member (also a LookupError)
├── UnknownMethodError        the object has no such method (also an AttributeError)
├── NotAllowedError           the class or method is not on the owner's allow-list (also a PermissionError)
├── NameConflictError         an object with that name was made with other arguments
├── StaleHandleError          the handle's object no longer exists
├── ForeignHandleError        the handle belongs to another owner
├── ContextEndedError         the context was ended by its trainer
├── ContextLostError          the owner no longer has this pass: run forward again
├── RemoteError               code that the owner hosts raised an exception
├── NonFiniteGradientError    the optimizer refused NaN or infinity
├── TooLargeError             the size of a message or result, or the depth of nesting, is over a limit
├── DeadlineExceededError     the call's time ran out (also a TimeoutError)
├── CancelledCallError        the call was cancelled
├── OverloadedError           this trainer has too many requests, bytes or hanging calls
│   └── QuotaError            this identity, its namespace, or all together would use more than a quota
├── UnavailableError          the owner is draining, or cannot be reached (also a ConnectionError)
├── ReplacedError             a later start of the owner's state has taken its place (also a ConnectionError)
├── RowsMovedError            the rows of a table are, or are about to be, on another owner (also a ConnectionError)
├── ObjectMovedError          the object is, or is about to be, on another owner (also a ConnectionError)
├── DrainingError             the owner is about to stop, and lets no step wait for others (also a ConnectionError)
├── StorageError              the owner cannot write down what would change; reading goes on (also an OSError)
├── SessionLostError          the session has ended; whether the request ran is not known (also a ConnectionError)
├── InternalError             the owner itself failed
├── UnauthenticatedError      the owner does not know who is asking (also a PermissionError)
├── PermissionDeniedError     the caller's role does not allow this, or it is another's (also a PermissionError)
└── ClosedError               this client was closed (never on the wire)
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar, Final

from ps_wire.v1 import errors_pb2
from ps_wire.v1.errors_pb2 import ErrorCode

SESSION_ENDED: Final = "the session of this trainer has ended"
"""The error of a request that outlives its session on the owner."""

RAN_OUT: Final = "RPC ran for more than its timeout"
"""Begins the message when the time of a call ran out, as in `torch.distributed.rpc`."""

MIXED_GROUPS: Final = "RPC group mixes statically and dynamically initialized members which is not supported."
"""Begins the message when some members of a group gave `world_size` and others did not, as there."""

BY_CODE: Final[dict[int, type[PsError]]] = {}
"""The errors that can be sent, by their codes."""


class PsError(RuntimeError):
    """Base of every error that this project raises. A `RuntimeError`, as every error of `torch.distributed.rpc` is.

    Attributes:
        drained: Whether the reason is that an owner was or is being stopped in order.
    """

    code: ClassVar[ErrorCode] = ErrorCode.ERROR_INTERNAL
    drained: bool = False

    def __init_subclass__(cls, code: ErrorCode | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if code is not None:
            cls.code = code
            BY_CODE[code] = cls


class InvalidArgumentError(PsError, ValueError, code=ErrorCode.ERROR_INVALID_ARGUMENT):
    """The request is malformed, or does not fit the object that it is for; nothing was changed."""


class UnknownNameError(PsError, LookupError, code=ErrorCode.ERROR_UNKNOWN_NAME):
    """There is no object, parameter, optimizer or member of that name."""


class UnknownMethodError(PsError, AttributeError, code=ErrorCode.ERROR_UNKNOWN_METHOD):
    """The object has no method of that name."""


class NotAllowedError(PsError, PermissionError, code=ErrorCode.ERROR_NOT_ALLOWED):
    """The class or method is not on the owner's allow-list."""


class NameConflictError(PsError, code=ErrorCode.ERROR_NAME_CONFLICT):
    """An object with that name exists and was made with another class or other arguments."""


class StaleHandleError(PsError, code=ErrorCode.ERROR_STALE_HANDLE):
    """The handle's object was deleted, or was freed with its last handle."""


class ForeignHandleError(PsError, code=ErrorCode.ERROR_FOREIGN_HANDLE):
    """The handle belongs to another owner than the one that was asked."""


class ContextEndedError(PsError, code=ErrorCode.ERROR_CONTEXT_ENDED):
    """The context was ended by its trainer. Also raised for a request that arrives after the end of its context."""


class ContextLostError(PsError, code=ErrorCode.ERROR_CONTEXT_LOST):
    """The owner no longer has this pass, for example after a restart. Run forward again."""


class RemoteError(PsError, code=ErrorCode.ERROR_REMOTE):
    """Code that the owner hosts raised an exception.

    This error is also an instance of the type of the exception, if that is one of Python's common exceptions, such as
    `ValueError`, or if this process has registered it (`@by_value`). Only its text is sent, and no other attributes.

    Attributes:
        remote_type: Full name of the exception's type on the owner, such as `builtins.ValueError`.
        remote_message: The message of the exception.
        remote_traceback: The owner's traceback, as text.
    """

    def __init__(self, message: str, remote_type: str = "", remote_traceback: str = "") -> None:
        # Not `super()`: the exception's own type may be the next base, and take other arguments.
        RuntimeError.__init__(self, message)
        self.remote_message = message
        self.remote_type = remote_type
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        text = f"{self.remote_type}: {self.remote_message}"
        return (
            f"{text}\n\nOriginal exception on remote side was:\n{self.remote_traceback}"
            if self.remote_traceback
            else text
        )


class NonFiniteGradientError(PsError, code=ErrorCode.ERROR_NON_FINITE_GRADIENT):
    """A gradient holds NaN or infinity, and the optimizer refuses such gradients; nothing was changed."""


class TooLargeError(PsError, code=ErrorCode.ERROR_TOO_LARGE):
    """The size of a message or result, or the depth of nesting, is over a limit. Nothing was changed."""


class DeadlineExceededError(PsError, TimeoutError, code=ErrorCode.ERROR_DEADLINE_EXCEEDED):
    """The call's time ran out. The owner may have run it."""


class CancelledCallError(PsError, code=ErrorCode.ERROR_CANCELLED):
    """The call was cancelled before its answer was sent. The owner may have run it."""


class OverloadedError(PsError, code=ErrorCode.ERROR_OVERLOADED):
    """This trainer has too many requests in flight, bytes, or hanging calls; wait for some of them to end."""


class QuotaError(OverloadedError, code=ErrorCode.ERROR_QUOTA):
    """The request needs more than a quota of its identity, of its namespace or of all together leaves. Nothing was
    changed. The message names the quota, what is used of it, and what to do."""


class UnavailableError(PsError, ConnectionError, code=ErrorCode.ERROR_UNAVAILABLE):
    """The owner is draining and accepts no new work, or could not be reached in time."""


class ReplacedError(PsError, ConnectionError, code=ErrorCode.ERROR_REPLACED):
    """A later start of the owner's state has taken its place in its group, at another address, or its data directory.

    This one takes no requests any more. A trainer that found it through the directory goes on there.
    """


class RowsMovedError(PsError, ConnectionError, code=ErrorCode.ERROR_ROWS_MOVED):
    """Rows of a table have moved to another owner, or do so at this moment. Nothing was changed.

    Handles of tables ask for the routing and repeat the request. Programs see it only if rows move while they are read
    block by block.
    """


class ObjectMovedError(PsError, ConnectionError, code=ErrorCode.ERROR_OBJECT_MOVED):
    """A named object has moved to another owner, or does so at this moment. Nothing was changed.

    Handles follow by themselves. Programs see it if the other owner cannot be found, and where the request needs the
    result of another one: made again, it goes there.

    Attributes:
        owner: The owner to ask; empty for the same one, in a moment.
        move: What that has to accept first; empty if there is nothing.
        object_id: The object; empty if it was asked for by its name.
    """

    def __init__(self, message: str, owner: str = "", move: str = "", object_id: str = "") -> None:
        super().__init__(message)
        self.owner, self.move, self.object_id = owner, move, object_id


class StorageError(PsError, OSError, code=ErrorCode.ERROR_STORAGE):
    """The owner cannot write its log, because the disk is full or has failed. Requests that only read go on, and others
    do so when there is room."""


class DrainingError(PsError, ConnectionError, code=ErrorCode.ERROR_DRAINING):
    """The owner is about to stop, and lets no step wait for other trainers. Nothing was applied.

    Run the pass again, or compute the gradients of a replica again. If the owner goes on from a checkpoint, requests
    wait for its next start.
    """

    drained = True


class SessionLostError(PsError, ConnectionError, code=ErrorCode.ERROR_SESSION_LOST):
    """The owner has ended the session: its lease ran out, an operator ended it, or the owner restarted.

    Whether the request ran is not known. Ask for the objects again, and repeat the pass: `Client.run` does both.
    """


class InternalError(PsError, code=ErrorCode.ERROR_INTERNAL):
    """The owner itself failed; its log has the details."""


class UnauthenticatedError(PsError, PermissionError, code=ErrorCode.ERROR_UNAUTHENTICATED):
    """The owner asks for a token or a certificate, and has got none that it knows and that is still valid."""


class PermissionDeniedError(PsError, PermissionError, code=ErrorCode.ERROR_PERMISSION_DENIED):
    """The roles of the caller do not allow this, or what it names belongs to another identity. Nothing was changed."""


class ClosedError(PsError):
    """The client was closed, or belongs to the parent of this forked process. Only raised locally."""


def to_message(error: PsError) -> errors_pb2.Error:
    """The message for an error."""
    if isinstance(error, RemoteError):
        return errors_pb2.Error(
            code=error.code,
            message=_text(error.remote_message),
            remote_type=_text(error.remote_type),
            traceback=_text(error.remote_traceback),
        )
    message = errors_pb2.Error(code=error.code, message=_text(str(error)), drained=error.drained)
    if isinstance(error, ObjectMovedError):
        message.moved.CopyFrom(errors_pb2.Moved(owner=error.owner, move=error.move, object_id=error.object_id))
    return message


def from_message(message: errors_pb2.Error) -> PsError:
    """The exception for an error message."""
    cls = BY_CODE.get(message.code, InternalError)
    if cls is RemoteError:
        return remote_error(message.message, message.remote_type, message.traceback)
    if cls is ObjectMovedError:
        moved = message.moved
        return ObjectMovedError(message.message, moved.owner, moved.move, moved.object_id)
    error = cls(message.message)
    if message.drained:
        error.drained = True
    return error


def caused(error: PsError, text: str) -> PsError:
    """An error of the same type and with `text` before its message, for an operation that failed because of it."""
    made: PsError
    if isinstance(error, RemoteError):
        made = type(error)(f"{text}: {error.remote_message}", error.remote_type, error.remote_traceback)
    else:
        made = type(error)(f"{text}: {error}")
    made.__cause__ = error
    made.drained = error.drained
    return made


def remote_error(
    message: str, remote_type: str, traceback: str = "", kind: type[Exception] | None = None
) -> RemoteError:
    """The error for an exception, also an instance of the exception's type if that is common or registered here.

    Its full name is only looked up; nothing is imported. Where it was raised in this process, the type itself is given.
    """
    found: Any = kind or _KINDS.get(remote_type)
    if found is not None:
        # A class may not accept subclasses, or not be made of a text. Its errors are plain ones then.
        with suppress(Exception):
            return _remote_kind(found)(message, remote_type, traceback)
    return RemoteError(message, remote_type, traceback)


def keep_type(kind: type[Exception], name: str) -> None:
    """Registers a class of exceptions: a `RemoteError` for one of them is an instance of the class, too."""
    _KINDS[name] = kind


_COMMON: Final[tuple[type[Exception], ...]] = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, FloatingPointError, ImportError),
    *(IndexError, KeyError, LookupError, ModuleNotFoundError, NameError, NotImplementedError, OverflowError),
    *(RecursionError, RuntimeError, TypeError, UnboundLocalError, ValueError, ZeroDivisionError),
)
"""Built-in exceptions that a `RemoteError` can be an instance of, too.

`OSError` and `MemoryError` are not among them: a caller would take the owner's `ConnectionError` for its own.
Exceptions with which Python ends loops and threads are not, either.
"""

_KINDS: Final[dict[str, type[Exception]]] = {f"builtins.{kind.__name__}": kind for kind in _COMMON}


@lru_cache(maxsize=256)
def _remote_kind(kind: type[Exception]) -> type[RemoteError]:
    return type(f"Remote{kind.__name__}", (RemoteError, kind), {"__doc__": f"A {kind.__name__} on an owner."})


def _text(value: str) -> str:
    """Text that fits into a message: characters that UTF-8 cannot encode are escaped."""
    return value.encode(errors="backslashreplace").decode()
