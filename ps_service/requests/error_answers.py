"""Answers with errors, the conversion of exceptions to errors, and the titles of requests in them."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from ps_service.sessions.reply_cache import Answer
from ps_wire import errors
from ps_wire.codec.names import full_name
from ps_wire.codec.records import codec_of
from ps_wire.refs import Ref
from ps_wire.v1.frames_pb2 import Frame

if TYPE_CHECKING:
    from types import TracebackType

    from ps_service.engine import Engine

_log = logging.getLogger(__name__)

_LONGEST_TEXT: Final = 64 * 1024
"""Most characters of an exception's message, and of its traceback, that are sent; both are in one frame."""

_MODULE_FILE: Final = nn.modules.module.__file__
_MODULE_CALLS: Final = {"_wrapped_call_impl", "_call_impl"}

_FAILED_BEFORE: Final = "an earlier call, whose result this call needs, has failed"


def failure(error: errors.PsError, number: int = 0) -> Answer:
    """The answer with an error."""
    frame = Frame(number=number)
    frame.reply.error.CopyFrom(errors.to_message(error))
    return Answer(frame, [], 0, [])


def stopping(engine: Engine, number: int = 0) -> Answer:
    """The answer to a request that an owner does not run because it stops."""
    if engine.gate.why:
        return failure(errors.ReplacedError(engine.gate.why), number)
    return failure(errors.UnavailableError(f"owner {engine.name!r} is shutting down and takes no new work"), number)


def overdrawn(engine: Engine, number: int = 0) -> Answer:
    """The answer to a request of a trainer whose abandoned requests hold too many threads."""
    text = (
        f"owner {engine.name!r} takes up no more work of this trainer for now: too many of its calls that were "
        "cancelled or ran out of time are still running. Do they hang, or is the timeout too short for them?"
    )
    return failure(errors.OverloadedError(text), number)


def cut_off(engine: Engine, number: int = 0) -> Answer:
    """The answer to a request that was still running when its owner stopped."""
    text = (
        f"owner {engine.name!r} stopped while this request ran; whether it had an effect is not known. "
        "Once it is back, ask for the objects again and repeat the pass, as ps.run(step, …, attach=…) does"
    )
    return failure(errors.SessionLostError(text), number)


def cancelled(number: int = 0) -> Answer:
    """The answer to a request that its trainer has given up."""
    return failure(errors.CancelledCallError("the call was cancelled; the owner may have run it all the same"), number)


def too_late(engine: Engine, what: str, seconds: float, number: int = 0) -> Answer:
    """The answer to a request whose deadline has passed, which has asked for `what`."""
    text = f"{errors.RAN_OUT}: {what} on owner {engine.name!r} was not finished within {seconds:g} s"
    return failure(errors.DeadlineExceededError(text), number)


def failed_before(answer: Answer, number: int) -> Answer:
    """The answer to a request that follows one that has failed with this answer."""
    frame = Frame(number=number)
    error = frame.reply.error
    error.CopyFrom(answer.reply.error)
    error.ClearField("moved")  # what has moved is not the object of this request
    # Not once more for each call of a long chain.
    if not error.message.startswith(_FAILED_BEFORE):
        error.message = f"{_FAILED_BEFORE}: {error.message}"
    return Answer(frame, [], 0, [])


def explain(error: BaseException, operation: str, hosted: bool) -> errors.PsError:
    """The error that the caller gets for an exception of a handler, or of code that the owner hosts."""
    if isinstance(error, errors.PsError):
        return error
    if hosted:
        text = _traceback(error, _from_hosted_code(error.__traceback__))
        codec = codec_of(type(error))
        # The name under which the caller may have registered the type.
        name = full_name(type(error)) if codec is None else codec.name
        return errors.RemoteError(_shortened(_text_of(error)), name, _shortened(text))
    _log.error("%s failed", operation, exc_info=error)
    return errors.InternalError(f"{operation} failed inside the owner; its log says why ({type(error).__name__})")


def whole_traceback(error: BaseException) -> str:
    """The traceback of an exception, from where hosted code begins; all of it, if it was raised before."""
    trace = error.__traceback__
    return _traceback(error, _from_hosted_code(trace) or trace)


def _traceback(error: BaseException, trace: TracebackType | None) -> str:
    """The text of a traceback, without the frames in which torch calls a module."""
    told = traceback.TracebackException(type(error), error, trace)
    each: traceback.TracebackException | None = told
    while each is not None:
        each.stack = traceback.StackSummary.from_list(
            [frame for frame in each.stack if frame.name not in _MODULE_CALLS or frame.filename != _MODULE_FILE]
        )
        each = each.__cause__ or each.__context__
    return "".join(told.format())


def _from_hosted_code(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that starts where the owner's own code ends."""
    rest = trace
    while rest is not None and rest.tb_frame.f_globals.get("__name__", "").startswith("ps_service."):
        rest = rest.tb_next
    return rest


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<it could not say what is wrong>"


def _shortened(text: str) -> str:
    left_out = len(text) - _LONGEST_TEXT
    half = _LONGEST_TEXT // 2
    return text if left_out <= 0 else f"{text[:half]} … {left_out:,} characters left out … {text[-half:]}"


def older_source(engine: Engine, operation: str, request: Any) -> str:
    """Says that the owner has an older source of the code that a request runs than its file or its sender; empty if
    that is not known. It reads files."""
    allowlist, theirs = engine.allowlist, b""
    try:
        if operation == "create":
            thing: Any = allowlist.hosted(request.class_name)
            theirs = request.source
        elif operation != "call":
            return ""
        elif request.function:
            thing = allowlist.function(request.function)
        else:
            thing = type(engine.registry.find(Ref.from_message(request.target)).value)
    except errors.PsError:
        return ""
    told = allowlist.loaded.difference(thing, theirs)
    return f"owner {engine.name!r} {told}" if told else ""


def title(engine: Engine, operation: str, request: Any) -> str:
    """The name of the function that a request runs, as far as it is known before it runs."""
    if operation in ("create", "optimizer", "scheduler"):
        return f"the constructor of {request.class_name}"
    if operation != "call":
        return f"a {operation}"
    if request.function:
        return str(request.function)
    try:
        class_name = engine.registry.find(Ref.from_message(request.target)).class_name
    except errors.PsError:
        class_name = "an object that is gone"
    return f"{class_name}.{request.method or 'forward'}"


def named_title(engine: Engine, operation: str, request: Any) -> str:
    """The title of a request, with the name of the object that it is for, if that has one."""
    text = title(engine, operation, request)
    for field in ("target", "optimizer"):
        if field in request.DESCRIPTOR.fields_by_name and request.HasField(field):
            try:
                name = engine.registry.find(Ref.from_message(getattr(request, field))).name
            except errors.PsError:
                name = ""
            return f"{text} of {name!r}" if name else text
    name = getattr(request, "name", "")
    return f"{text} for {name!r}" if name else text
