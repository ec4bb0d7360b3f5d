"""The handlers of backwards, which may have steps and the end of their pass behind them, and of that end."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from ps_service.group.peers import Over
from ps_service.numerics.regions import numerics_of
from ps_service.parameters.locks import WouldBlock
from ps_service.passes import propagation
from ps_service.passes.gradients import Turn
from ps_service.requests import fields, offers, steps
from ps_service.requests.progress import Progress
from ps_service.training.optimizers import optimizer_of
from ps_service.training.waiting_offers import Outcome
from ps_wire.errors import InvalidArgumentError, PsError
from ps_wire.limits import MIB
from ps_wire.numbers import LONGEST_SECONDS, no_seconds
from ps_wire.refs import CallKey, ContextId
from ps_wire.runtime import latency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.passes.pass_context import PassContext
    from ps_service.requests.context import RequestContext
    from ps_service.sessions.effects import Effects
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.v1 import operations_pb2 as pb

_NO_REGION: Final = nullcontext()

_MOST_INLINE: Final = MIB
"""Most bytes of gradients that are checked on the event loop."""


def backward(ctx: RequestContext, request: pb.BackwardRequest, reply: pb.BackwardReply) -> None:
    """Propagates gradients through recorded calls. Then steps and ends the pass, as far as the request asks for it."""
    id = fields.context_id(request)
    if not 0.0 <= request.wait_seconds <= LONGEST_SECONDS:
        # Rounds wait for that long, after the backward; a request that is refused has changed nothing.
        raise no_seconds("wait_seconds", request.wait_seconds)
    progress = ctx.progress = ctx.progress or Progress()
    with numerics_of(request) if request.HasField("numerics") else _NO_REGION:
        try:
            _propagate(ctx, request, id, progress)
        finally:
            if ctx.effects is not None and progress.changed:
                _note_changed(ctx, ctx.effects, progress)
    for position, of_inputs in enumerate(progress.of_inputs):
        message = reply.more.add() if position else reply.gradients
        if of_inputs:
            ctx.write(message, of_inputs)
        else:
            message.list.SetInParent()
    reply.seconds.extend(progress.seconds)
    if request.checks:
        _check_ahead(ctx, request, id, reply)
    stepped = not request.steps or _step(ctx, request, id, progress, reply)
    reply.versions.extend(progress.versions)
    if progress.staleness:
        reply.staleness.extend(progress.staleness)
    if stepped and ctx.after is not None:
        ctx.after.append(partial(_end_after, ctx, request, id))
    elif stepped:
        _end_after(ctx, request, id)


def _note_changed(ctx: RequestContext, effects: Effects, progress: Progress) -> None:
    """Notes what code of the backward has changed."""
    for hosted, are_buffers in progress.changed.items():
        if are_buffers:
            effects.changes_buffers(hosted)
        else:
            effects.changes(hosted)
            ctx.after = None  # its whole state is read for the answer, and must not wait for a step


def _end_after(ctx: RequestContext, request: pb.BackwardRequest, id: ContextId) -> None:
    """Ends the pass, if the request asks for it."""
    if request.HasField("end"):
        began, end = time.perf_counter(), request.end
        ctx.engine.contexts.end(id, Over(end.all_before, tuple(end.but)))
        ctx.engine.counters.note(("end_context", time.perf_counter() - began, 0, int(time.monotonic())))


def _propagate(ctx: RequestContext, request: pb.BackwardRequest, id: ContextId, progress: Progress) -> None:
    """Runs the backwards of the calls, but for those that are done."""
    calls: Sequence[Any] = (request, *request.more) if request.more else (request,)
    gradients = []
    for call in calls:
        of_outputs = ctx.read_plain(call.gradients)
        if not isinstance(of_outputs, list):
            raise InvalidArgumentError("the gradients of a backward are a list")
        gradients.append(of_outputs)
    done, changed = len(progress.of_inputs), None if ctx.effects is None else progress.changed
    for call, of_outputs in zip(calls[done:], gradients[done:], strict=True):
        began, turn = (time.perf_counter(), time.thread_time()), None
        if request.backward:
            after = call.after if call.HasField("after") else None
            turn = Turn(request.backward, tuple(call.place) or (call.call,), after)
        key = CallKey(ctx.trainer, call.call)
        of_inputs = propagation.backward(
            ctx.engine, id, key, call.outputs, of_outputs, request.retain_graph, turn, changed
        )
        progress.of_inputs.append(of_inputs)
        progress.seconds.append(latency.busy_since(began))


def _step(
    ctx: RequestContext, request: pb.BackwardRequest, id: ContextId, progress: Progress, reply: pb.BackwardReply
) -> bool:
    """Steps the optimizers that have no version yet, up to the first that raises; says whether all have stepped. From
    the first optimizer with a policy on, the gradients are offered: the reply comes, and the pass ends, when their
    trainer may go on."""
    engine, versions = ctx.engine, progress.versions
    if request.context.run:
        steps.note_attempt(engine, request, ctx.effects)
    if request.marks and not versions:
        began = time.perf_counter()
        try:
            steps.check_rows(ctx.engine, request.steps, request.marks)
        except PsError as raised:
            return _failed(ctx, reply, raised, began)
    if request.together:
        return _step_together(ctx, request, id, progress, reply)
    for handle in request.steps[len(versions) :]:
        if ctx.abandoned:
            # The trainer has heard that the request has failed, and the pass goes on without the step.
            return False
        began = time.perf_counter()
        try:
            optimizer = optimizer_of(ctx.find(handle))
            if optimizer.rounds is not None:
                _offer_rest(ctx, request, id, progress, reply)
                return False
            with ctx.probe.part("step") if ctx.probe is not None else _NO_REGION:
                context = engine.contexts.get(id)
                if context is not None:
                    if engine.parameter_locks.this_thread.nonblocking:
                        # Only now is known how large the gradients are.
                        seconds = optimizer.latency.expected(context.gradient_bytes)
                        if seconds >= latency.INLINE_SECONDS and not engine.inline_limit.admits(seconds):
                            raise WouldBlock
                    context.last_staleness = 0  # a step that is left out has none
                versions.append(steps.stepped(ctx, optimizer, context))
                if context is not None and context.last_staleness:
                    progress.note_staleness(context.last_staleness)
        except WouldBlock:
            raise
        except BaseException as raised:
            return _failed(ctx, reply, raised, began)
        engine.counters.note(("step", time.perf_counter() - began, 0, int(time.monotonic())))
    engine.sessions.stepped(ctx.trainer, id)
    return True


def _step_together(
    ctx: RequestContext, request: pb.BackwardRequest, id: ContextId, progress: Progress, reply: pb.BackwardReply
) -> bool:
    """Like `_step`, of all optimizers or none. If one has a policy, all are checked, and then step by themselves."""
    if ctx.abandoned:
        return False
    began = time.perf_counter()
    try:
        optimizers = steps.found(ctx, request.steps)
        if any(each.rounds is not None for each in optimizers):
            steps.check(ctx, optimizers, id)
            _offer_rest(ctx, request, id, progress, reply)
            return False
        with ctx.probe.part("step") if ctx.probe is not None else _NO_REGION:
            context = ctx.engine.contexts.get(id)
            stepped = None if context is None else steps.stepped_together(ctx, optimizers, context)
            progress.versions.extend(each.version for each in (stepped or optimizers))
            if stepped is not None:
                progress.staleness.extend(each.staleness for each in stepped)
    except WouldBlock:
        raise
    except BaseException as raised:
        return _failed(ctx, reply, raised, began)
    ctx.engine.counters.count("step", time.perf_counter() - began)
    ctx.engine.sessions.stepped(ctx.trainer, id)
    return True


def _failed(ctx: RequestContext, reply: pb.BackwardReply, raised: BaseException, began: float) -> bool:
    offers.describe_error(ctx, reply, raised)
    ctx.engine.counters.count("step", time.perf_counter() - began, reply.step_error.code)
    return False


def _offer_rest(
    ctx: RequestContext, request: pb.BackwardRequest, id: ContextId, progress: Progress, reply: pb.BackwardReply
) -> None:
    """Offers gradients to the rounds of the optimizers that have no version yet, or steps them if they have none."""
    if ctx.engine.parameter_locks.this_thread.nonblocking:
        # The reply is deferred, which a request on the event loop cannot be; and no offer may be made twice.
        raise WouldBlock
    ctx.catch_up()  # a round may step the same parameters
    versions = progress.versions
    for version, staleness in zip_longest(versions, progress.staleness, fillvalue=0):
        offers.describe(ctx, id, reply.stepped.add(), Outcome(version, staleness, 1))

    def step(optimizer: HostedOptimizer, context: PassContext) -> int:
        return optimizer.step(context, None if ctx.effects is None else steps.noting(ctx.effects, optimizer, context))

    waiting = offers.offer_all(ctx, request.steps[len(versions) :], id, fields.wait_seconds(request), step)

    def finish(results: Sequence[offers.Result]) -> None:
        if offers.describe_all(ctx, id, reply, results):
            _end_after(ctx, request, id)

    ctx.defer(waiting, finish)


def _check_ahead(ctx: RequestContext, request: pb.BackwardRequest, id: ContextId, reply: pb.BackwardReply) -> None:
    """Checks gradients that a later request is to apply, if all owners accept theirs."""
    context = ctx.engine.contexts.get(id)
    if (
        context is not None
        and ctx.engine.parameter_locks.this_thread.nonblocking
        and context.gradient_bytes > _MOST_INLINE
    ):
        raise WouldBlock
    try:
        steps.check_rows(ctx.engine, request.checks, request.marks)
        steps.check(ctx, steps.found(ctx, request.checks), id)
    except WouldBlock:
        raise
    except BaseException as raised:
        offers.describe_error(ctx, reply, raised)
        return
    reply.checked = context is None or context.called is None


def end_context(ctx: RequestContext, request: pb.EndContextRequest, reply: pb.EndContextReply) -> None:
    """Ends a pass, and notes the others that the request names."""
    ctx.engine.contexts.end(fields.context_id(request), Over(request.all_before, tuple(request.but)))
