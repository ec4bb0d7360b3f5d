"""Runs the handler of one request in the calling thread, and makes the answer."""

from __future__ import annotations

import time
from operator import call
from typing import TYPE_CHECKING, Any, Final

from ps_service.access.identities import asking
from ps_service.parameters.locks import WouldBlock
from ps_service.requests import durable, incidents, moving
from ps_service.requests.error_answers import explain, failure, older_source, title
from ps_wire.errors import PsError
from ps_wire.runtime import latency
from ps_wire.runtime.scopes import Scope, current_scope
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_service.requests.context import RequestContext
    from ps_service.requests.operations import Operation
    from ps_service.sessions.reply_cache import Answer


_OF_OLDER_CODE: Final = frozenset(
    (
        ErrorCode.ERROR_REMOTE,
        ErrorCode.ERROR_UNKNOWN_METHOD,
        ErrorCode.ERROR_NOT_ALLOWED,
        ErrorCode.ERROR_INVALID_ARGUMENT,
    )
)
"""Errors that a request may have because the owner has loaded older code than the trainer means."""


class _NoRequests(Scope):
    """The scope of code that must not make requests, because it runs on the event loop."""

    def within(self, seconds: float | None) -> float | None:
        """Called before a nested request is sent."""
        raise WouldBlock


_NO_REQUESTS: Final = _NoRequests()


def run_inline(ctx: RequestContext, operation: Operation, request: Any, number: int) -> Answer | None:
    """Runs a request on the event loop, if it is expected to be short. None if it is not, or would have to wait: it has
    to be queued then, see `Execution`, and has changed nothing but what `RequestContext.progress` notes."""
    limit = ctx.engine.inline_limit
    if ctx.trainer != limit.trainer:
        limit.arrived(ctx.trainer)
    if operation.expected_seconds is None:
        return None
    try:
        seconds = operation.expected_seconds(ctx, request)
    except Exception:
        seconds = 0.0  # The handler raises it again at once.
    is_short = seconds < latency.INLINE_SECONDS
    if not is_short and not (limit.admits(seconds) and _waits_for_answers(ctx)):
        return None
    this_thread = ctx.engine.parameter_locks.this_thread
    this_thread.nonblocking = True
    try:
        return handle(ctx, operation, request, number, _NO_REQUESTS if ctx.may_restart else None)
    except WouldBlock:
        return None
    finally:
        this_thread.nonblocking = False
        if not is_short:
            limit.ran(seconds)


def _waits_for_answers(ctx: RequestContext) -> bool:
    """Whether the limit can tell that a trainer waits for each answer before it sends the next request. Over gRPC it
    cannot, because the next message is read late; and a hand-over adds little to a round trip there."""
    session = ctx.engine.sessions.get(ctx.trainer)
    return session is not None and session.transport not in ("grpc", "unary", "in_process")


def handle(
    ctx: RequestContext, operation: Operation, request: Any, number: int, scope: Scope | None = None
) -> Answer | None:
    """Runs the handler, with nested requests in `scope`, or writes the reply that it has deferred before.

    Returns the answer, which may be an error; None if the handler has deferred its reply now. Raises `WouldBlock` if
    the request would have to wait, and this thread must not.
    """
    error, probe = 0, ctx.probe
    run: Callable[..., object] = call if probe is None else probe.run
    # Setting a context variable costs as much as a field of a message.
    asked = None if ctx.asker is None else ctx.begin_as()
    token = None if scope is None and current_scope.get() is None else current_scope.set(scope)
    try:
        frame = ctx.frame
        if frame is not None:
            run(ctx.complete)
        else:
            if ctx.engine.moves.held:
                moving.check(ctx.engine, request)
            if operation.mutates and (log := ctx.engine.durability.log) is not None:
                ctx.number = number or ctx.number
                ctx.begin_effects(log, operation.name, request)
            frame = Frame(number=number)
            reply = getattr(frame.reply, operation.name)
            reply.SetInParent()
            run(operation.handle, ctx, request, reply)
            if ctx.deferred is not None:
                ctx.frame = frame
                if ctx.effects is not None:
                    ctx.effects.pause()
                return None
        answer = ctx.answer(frame)
        if ctx.effects is not None:
            durable.tell(ctx.effects, operation.name, request, answer.reply)
            ctx.commit(number, answer)
    except WouldBlock:
        ctx.abandon()
        raise
    except BaseException as raised:
        # Even a SystemExit of hosted code becomes an answer, and does not end this process.
        answer = _answer_for(ctx, operation, request, raised, number)
        if ctx.effects is not None:
            answer = _with_effects(ctx, operation, number, answer)
        error = answer.reply.error.code
    finally:
        if token is not None:
            current_scope.reset(token)
        if asked is not None:
            asking.reset(asked)
    if probe is not None:
        probe.write(answer.reply)
    # A request that was given up has been counted already.
    if not ctx.abandoned:
        engine, seconds = ctx.engine, time.perf_counter() - ctx.began
        engine.counters.count(operation.name, seconds, error)
        if seconds > engine.slow_seconds and operation.hosted:
            incidents.slow(ctx, operation, request, seconds)
    if error:
        ctx.give_back()
    return answer


def _with_effects(ctx: RequestContext, operation: Operation, number: int, answer: Answer) -> Answer:
    """The answer to a request that has failed, and may have changed something."""
    try:
        ctx.commit(number, answer)
    except Exception as error:  # without an answer the trainer would wait for ever
        return failure(explain(error, operation.name, hosted=False), number)
    return answer


def _answer_for(ctx: RequestContext, operation: Operation, request: Any, raised: BaseException, number: int) -> Answer:
    """The answer for an exception. If that cannot be explained, it is the one for the error in this, and the log has
    both: without an answer the trainer would wait for ever."""
    try:
        return _failed(ctx, operation, request, raised, number)
    except Exception as error:
        return failure(explain(error, operation.name, hosted=False), number)


def _failed(ctx: RequestContext, operation: Operation, request: Any, raised: BaseException, number: int) -> Answer:
    """The answer for an exception. A function of its own, because a variable of `handle` that held the exception would
    be a cycle, by its traceback, and would keep the tensors of the call until the garbage collector runs."""
    try:
        moving.check_pass(ctx.engine, request, raised)
    except PsError as lost:
        raised = lost
    if not operation.hosted or isinstance(raised, PsError):
        answer = failure(explain(raised, operation.name, operation.hosted), number)
    else:
        answer = failure(incidents.explained(ctx, title(ctx.engine, operation.name, request), raised), number)
    error = answer.reply.error
    if error.code in _OF_OLDER_CODE and (told := older_source(ctx.engine, operation.name, request)):
        error.message += f"; {told}"
    return answer
