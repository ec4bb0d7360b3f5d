"""Dispatch: runs a handler and turns whatever happens into an answer."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from ps_service.execution.fair_queue import WorkItem
from ps_service.parameters.state import WouldBlock
from ps_service.requests import inline
from ps_service.requests.context import RequestContext
from ps_service.requests.handlers import OPERATIONS
from ps_service.requests.titles import title
from ps_service.sessions.reply_cache import Answer
from ps_wire import errors
from ps_wire.codec.names import full_name
from ps_wire.errors import (
    CancelledCallError,
    DeadlineExceededError,
    InternalError,
    OverloadedError,
    PsError,
    RemoteError,
    SessionLostError,
    TooLargeError,
    UnavailableError,
)
from ps_wire.limits import MAX_FRAME_BYTES
from ps_wire.refs import CallKey, ContextId, Ref
from ps_wire.runtime.scopes import Scope, current_scope
from ps_wire.v1.frames_pb2 import Frame

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_wire.codec.payload import Buffer

_log = logging.getLogger(__name__)

_QUICK_BYTES: Final = 64 * 1024
"""Calls with larger arguments go to a thread, whatever they do."""

_LONGEST_TEXT: Final = 64 * 1024
"""Characters of an exception's message or traceback that are told to the caller: they share one frame."""


async def answer(
    engine: Engine,
    trainer: bytes,
    operation: str,
    request: Any,
    payload: Buffer | None = None,
    timeout_seconds: float = 0.0,
    inline: bool = False,
    item: WorkItem | None = None,
) -> Answer:
    """Runs one operation, in a thread if it takes time, and returns its answer, which may be an error. Never raises.

    Args:
        engine: The owner.
        trainer: Who asks.
        operation: Name of the operation.
        request: Its message.
        payload: The tensor bytes beside the message.
        timeout_seconds: How long the caller will wait; 0 for as long as it takes.
        inline: Whether tensor bytes go into the reply's message.
        item: Says whose turn it takes; that of the trainer, if left out.
    """
    if not engine.gate.admits(trainer, operation, request, OPERATIONS[operation].mutates):
        refused = failure(stopping(engine))
        engine.counters.refuse(refused.reply.error.code)
        return refused
    ctx = RequestContext(engine, trainer, payload, inline)
    quickly = perform_quickly(ctx, operation, request)
    if quickly is not None:
        return quickly
    ctx = RequestContext(engine, trainer, payload, inline)
    scope = Scope(timeout_seconds)
    item = item or WorkItem(trainer)
    item.apart = OPERATIONS[operation].apart
    item.what = partial(title, engine, operation, request)
    of = item.of
    engine.counters.running += 1
    try:
        async with asyncio.timeout(timeout_seconds or None):
            work = partial(perform_queued, ctx, operation, request, of, scope=scope)
            result = await engine.compute.run(work, item)
            if isinstance(result, Later):
                result = await _awaited(engine, result, of)
            return result
    except TimeoutError:
        scope.cancel()
        return abandoned(ctx, operation, too_late(operation, timeout_seconds))
    except asyncio.CancelledError:
        scope.cancel()
        return abandoned(ctx, operation, cancelled())
    finally:
        engine.counters.running -= 1


async def _awaited(engine: Engine, later: Later, of: bytes) -> Answer:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wake() -> None:
        loop.call_soon_threadsafe(done.set)

    later.when_done(wake)
    await done.wait()
    return await engine.compute.run(later.finish, WorkItem(of, urgent=True))


class Later:
    """The answer to a request whose result is not there yet.

    Args:
        ctx: Holds the result to come.
        attempt: Writes the reply and makes the answer of it.
    """

    def __init__(self, ctx: RequestContext, attempt: Attempt) -> None:
        self._ctx = ctx
        self._attempt = attempt

    def when_done(self, do: Callable[[], None]) -> None:
        """Has something done, in whichever thread, once the answer can be had."""
        deferred = self._ctx.deferred
        assert deferred is not None
        counters = self._ctx.engine.counters
        counters.wait(1)

        def there() -> None:
            counters.wait(-1)
            do()

        deferred.when_done(there)

    def finish(self) -> Answer:
        """The answer. Never raises."""
        return self._attempt.finished(self._ctx.complete)


class Attempt:
    """One operation while it is tried.

    Args:
        ctx: What it reads from and writes to.
        operation: Name of the operation.
        number: Number of the request, for the answer's frame.
        scope: What it passes on to requests that are made for it.
    """

    def __init__(self, ctx: RequestContext, operation: str, number: int, scope: Scope | None) -> None:
        self._ctx = ctx
        self._operation = operation
        self._number = number
        self._scope = scope
        self._frame = Frame(number=number)

    def run(self, request: Any) -> Answer | Later:
        """Calls the handler. Never raises anything but `WouldBlock`."""
        ctx = self._ctx

        def handle() -> None:
            rules = OPERATIONS[self._operation]
            slot = getattr(self._frame.reply, self._operation)
            slot.SetInParent()
            rules.handle(ctx, request, slot)

        return self._tried(handle) or Later(ctx, self)

    def finished(self, complete: Callable[[], None]) -> Answer:
        """Writes what was deferred. Never raises."""
        answer = self._tried(complete, last=True)
        assert answer is not None
        return answer

    def _tried(self, do: Callable[[], None], last: bool = False) -> Answer | None:
        """The answer after something was done; None if that was not all."""
        ctx = self._ctx
        token = current_scope.set(self._scope)
        try:
            do()
            if ctx.deferred is not None and not last:
                return None
            self._frame.reply.borrowed.extend(each.ref.to_message() for each in ctx.borrowed)
            self._frame.reply.granted.extend(ctx.granted)
            _check_size(ctx, self._frame)
            held = [each.held for each in ctx.borrowed]
            result = Answer(self._frame, ctx.written.chunks, ctx.written.nbytes, ctx.granted, held)
            failed = False
        except WouldBlock:
            raise
        except BaseException as error:
            # Even a SystemExit of hosted code is an answer, and ends nothing here.
            result, failed = failure(_explain(error, self._operation), self._number), True
        finally:
            current_scope.reset(token)
        # A request that was given up has been counted then.
        if not ctx.abandoned:
            code = result.reply.error.code if failed else 0
            ctx.engine.counters.count(self._operation, ctx.seconds, code)
        if failed:
            ctx.give_back()
        return result


def perform(
    ctx: RequestContext, operation: str, request: Any, number: int = 0, scope: Scope | None = None
) -> Answer | Later:
    """Runs one operation here and now. Never raises anything but `WouldBlock`.

    Args:
        ctx: What it reads from and writes to.
        operation: Name of the operation.
        request: Its message.
        number: Number of the request, for the answer's frame.
        scope: What it passes on to requests that are made for it.

    Returns:
        Its answer, or how to come by it later.
    """
    return Attempt(ctx, operation, number, scope).run(request)


def perform_queued(
    ctx: RequestContext, operation: str, request: Any, of: bytes, number: int = 0, scope: Scope | None = None
) -> Answer | Later:
    """Runs one operation in the compute thread that it has waited for. Never raises.

    Args:
        ctx: What it reads from and writes to.
        operation: Name of the operation.
        request: Its message.
        of: Whose turn it is. Who holds too many threads with work that was given up is refused.
        number: Number of the request, for the answer's frame.
        scope: What it passes on to requests that are made for it.
    """
    engine = ctx.engine
    engine.counters.queued(ctx.seconds)
    if engine.compute.has_lost_enough(of) and not OPERATIONS[operation].apart:
        return abandoned(ctx, operation, overdrawn(engine, number))
    return perform(ctx, operation, request, number, scope)


def abandoned(ctx: RequestContext, operation: str, error: Answer) -> Answer:
    """Nobody waits for an operation any more: it is counted as failed, and what it grants is taken back.

    Returns:
        The answer it has instead: the same.
    """
    ctx.engine.counters.count(operation, ctx.seconds, error.reply.error.code)
    ctx.give_back()
    return error


def perform_quickly(ctx: RequestContext, operation: str, request: Any, number: int = 0) -> Answer | None:
    """Runs one operation here and now if that takes no time and waits for nobody; None if it has to go to a thread.

    The exchange is of no more use when it has.
    """
    engine = ctx.engine
    payload = ctx.payload
    if payload is not None and len(payload) > _QUICK_BYTES:
        return None
    try:
        if not _is_quick(engine, ctx.trainer, operation, request):
            return None
    except PsError:
        pass  # It will be refused, which does not take long.
    try:
        with engine.parameter_locks.nonblocking():
            done = perform(ctx, operation, request, number)
    except WouldBlock:
        return None
    assert isinstance(done, Answer), "what is quick is never deferred"
    return done


def _is_quick(engine: Engine, trainer: bytes, operation: str, request: Any) -> bool:
    match operation:
        case "call":
            return not request.function and inline.call(engine, Ref.from_message(request.target), request.method)
        case "backward":
            key = CallKey(trainer, request.call)
            return inline.backward(engine, ContextId.from_message(request.context), key)
        case "step":
            return inline.step(engine, Ref.from_message(request.optimizer))
        case _:
            return OPERATIONS[operation].inline


def failure(error: PsError, number: int = 0) -> Answer:
    """The answer that carries an error."""
    frame = Frame(number=number)
    frame.reply.error.CopyFrom(errors.to_message(error))
    return Answer(frame, [], 0, [])


def stopping(engine: Engine) -> PsError:
    """Why an owner that is about to stop does not take a request up."""
    return UnavailableError(f"owner {engine.name!r} is shutting down and takes no new work")


def overdrawn(engine: Engine, number: int = 0) -> Answer:
    """The answer to a request of a trainer whose given-up requests hold too many threads."""
    text = (
        f"owner {engine.name!r} takes up no more work of this trainer for now: too many of its calls that were "
        "cancelled or ran out of time are still running. Do they hang, or is the timeout too short for them?"
    )
    return failure(OverloadedError(text), number)


def cut_off(engine: Engine, number: int = 0) -> Answer:
    """The answer to a request that was still running when its owner stopped."""
    text = f"owner {engine.name!r} stopped while this request ran; whether it had an effect is not known"
    return failure(SessionLostError(text), number)


def cancelled(number: int = 0) -> Answer:
    """The answer to a request that its trainer has given up."""
    return failure(CancelledCallError("the call was cancelled; the owner may have run it all the same"), number)


def too_late(operation: str, seconds: float, number: int = 0) -> Answer:
    """The answer to a request whose time has run out."""
    return failure(DeadlineExceededError(f"{operation} was not finished within {seconds:g} s"), number)


def _check_size(ctx: RequestContext, frame: Frame) -> None:
    limit = ctx.engine.limits.max_message_bytes
    if ctx.written.nbytes > limit:
        raise TooLargeError(
            f"the reply has {ctx.written.nbytes:,} bytes of tensors; the limit is {limit:,}. "
            "Ask for less at a time, or raise max_message_bytes on the owner"
        )
    size = frame.ByteSize()
    if size > MAX_FRAME_BYTES:
        # It would break the stream, and again whenever it is sent again.
        raise TooLargeError(
            f"the reply has {size:,} bytes beside its tensors; {MAX_FRAME_BYTES:,} are allowed. "
            "Return large data as tensors"
        )


def _explain(error: BaseException, operation: str) -> PsError:
    if isinstance(error, PsError):
        return error
    if OPERATIONS[operation].hosted:
        hosted = _from_hosted_code(error.__traceback__)
        if hosted is None:
            _log.info("%s raised before it came to hosted code", operation, exc_info=error)
        text = "".join(traceback.format_exception(type(error), error, hosted))
        return RemoteError(_shortened(_said(error)), full_name(type(error)), _shortened(text))
    _log.error("%s failed", operation, exc_info=error)
    return InternalError(f"{operation} failed inside the owner; its log says why ({type(error).__name__})")


def _from_hosted_code(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that starts where the owner's own code ends."""
    rest = trace
    while rest is not None and rest.tb_frame.f_globals.get("__name__", "").startswith("ps_service."):
        rest = rest.tb_next
    return rest


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<it could not say what is wrong>"


def _shortened(text: str) -> str:
    left_out = len(text) - _LONGEST_TEXT
    half = _LONGEST_TEXT // 2
    return text if left_out <= 0 else f"{text[:half]} … {left_out:,} characters left out … {text[-half:]}"
