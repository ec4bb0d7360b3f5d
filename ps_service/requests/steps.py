"""The handler of steps: the plain one first, and then what policies and several optimizers add."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ps_service.requests import fields, offers, reported_values, round_messages, spanning
from ps_service.requests.prepared import pass_of, prepare
from ps_service.tables.applied_steps import AppliedStep, digest_of
from ps_service.tables.stand_in import AllRows, without
from ps_service.training import joint_steps
from ps_service.training.optimizers import optimizer_of
from ps_wire.attempts import REPEATED
from ps_wire.errors import ContextLostError, InvalidArgumentError
from ps_wire.refs import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ps_service.engine import Engine
    from ps_service.passes.pass_context import PassContext
    from ps_service.requests.context import RequestContext
    from ps_service.sessions.effects import Effects
    from ps_service.tables.stand_in import RowsOfTable
    from ps_service.training.aggregator import Aggregator
    from ps_service.training.joint_steps import Stepped
    from ps_service.training.optimizers import HostedOptimizer, Note
    from ps_service.training.round_gradients import RoundGradients
    from ps_wire.attempts import Attempt
    from ps_wire.refs import ContextId
    from ps_wire.v1 import operations_pb2 as pb
    from ps_wire.v1.values_pb2 import Handle


def step(ctx: RequestContext, request: pb.StepRequest, reply: pb.StepReply) -> None:
    """Applies the gradients of a context, or only checks them. If the optimizer has a policy, they are offered to its
    rounds, and the reply comes when their trainer may go on."""
    if request.marks:
        check_rows(ctx.engine, (request.optimizer, *request.more), request.marks)
    if request.context.run:
        note_attempt(ctx.engine, request, ctx.effects)
    if ctx.effects is not None and request.HasField("context"):
        id = fields.context_id(request)
        if id in ctx.engine.prepared:
            ctx.effects.in_pass(id)
    optimizer = optimizer_of(ctx.find(request.optimizer))
    if request.beside:
        optimizer.told(request.beside)
    if optimizer.rounds is None and not (request.more or request.check_only or request.HasField("offer")):
        _apply(ctx, optimizer, request, reply)
    elif request.HasField("offer") and not request.more:
        offers.offer_to_owners(ctx, optimizer, request, reply)
    elif request.more or request.check_only:
        step_together(ctx, request, reply)
    elif request.apart and optimizer.rounds is not None and optimizer.rounds.owners:
        spanning.step_apart(ctx, optimizer, optimizer.rounds, request, reply, noting)
    else:
        id, values = fields.context_id(request), reported_values.read(ctx, request.values)
        waiting = offers.offer(ctx, optimizer, id, fields.wait_seconds(request), values)
        ctx.defer(waiting, partial(offers.describe, ctx, id, reply))


def _apply(ctx: RequestContext, optimizer: HostedOptimizer, request: pb.StepRequest, reply: pb.StepReply) -> None:
    """Steps at once. Values count also if the pass has no gradients here, because others may have some."""
    context = pass_of(ctx.engine, fields.context_id(request), [optimizer])
    step = partial(stepped, ctx, optimizer, context)
    reply.version = reported_values.step_with(ctx, optimizer, request, reply, step, context)
    if context is not None:
        reply.counted, reply.staleness = 1, context.last_staleness
        reply.dropped = why_left_out(context.attempt, optimizer)
        ctx.engine.sessions.stepped(ctx.trainer, context.id)


def stepped(ctx: RequestContext, optimizer: HostedOptimizer, context: PassContext | None) -> int:
    """The version after the step of a pass, which has no gradients here if it has no context. Its arithmetic follows
    the answer, if that need not wait for it."""
    if context is None:
        return optimizer.version
    note = None if ctx.effects is None else noting(ctx.effects, optimizer, context)
    if ctx.after is None:
        return optimizer.step(context, note)
    if ctx.after and any(each.parameter_state.stepped for each in optimizer.covered):
        ctx.catch_up()  # another optimizer of this request has these parameters until its step is whole
    stepping = optimizer.stepping(context, note)
    version = next(stepping)
    ctx.after.append(partial(next, stepping, None))
    return version


def noting(effects: Effects, optimizer: HostedOptimizer, gradients: PassContext | RoundGradients) -> Note:
    """Notes the step that an optimizer makes next with some gradients. Raises as `Effects.will_step`."""
    attempt = gradients.attempt
    effects.will_step(optimizer, gradients.gradient_bytes)
    return partial(effects.steps, place=0 if attempt is None else attempt.place_of(optimizer.number))


def step_together(ctx: RequestContext, request: pb.StepRequest, reply: pb.StepReply) -> None:
    """Applies the gradients of a context to optimizers, or only checks them. Those with a policy are checked and left
    out; the trainer then steps each by itself. Values are those of the first optimizer, and count with it."""
    if request.HasField("offer") or request.finish:
        raise InvalidArgumentError("offers, and steps to be finished, are for one optimizer only")
    optimizers = found(ctx, (request.optimizer, *request.more))
    reported_values.check(ctx, optimizers[0], request.values)
    replies = [reply, *(reply.more.add() for _ in request.more)]
    id = fields.context_id(request)
    context = pass_of(ctx.engine, id, optimizers)
    stepping = []
    for optimizer, own in zip(optimizers, replies, strict=True):
        own.version = optimizer.version
        if request.check_only or optimizer.rounds is not None:
            if request.prepare:
                prepare(ctx, optimizer, id, context)
            elif context is not None:
                optimizer.check(context)
            if not request.check_only:
                _leave_out(optimizer.rounds, own)
        else:
            stepping.append((optimizer, own))

    def apply() -> list[Stepped]:
        return [] if context is None else stepped_together(ctx, [optimizer for optimizer, _ in stepping], context)

    if stepping and stepping[0][0] is optimizers[0]:
        # Values count also if the pass has no gradients here, because other owners may have some.
        done = reported_values.step_with(ctx, optimizers[0], request, reply, apply, context)
    else:
        done = apply()
    if context is None:
        return
    if done:
        ctx.engine.sessions.stepped(ctx.trainer, context.id)
    for (_, own), stepped in zip(stepping, done, strict=True):
        own.version, own.staleness, own.counted = stepped.version, stepped.staleness, 1


def stepped_together(ctx: RequestContext, optimizers: Sequence[HostedOptimizer], context: PassContext) -> list[Stepped]:
    """Steps optimizers as `joint_steps.step_together`, and notes it."""
    notes = None if ctx.effects is None else [noting(ctx.effects, each, context) for each in optimizers]
    return joint_steps.step_together(optimizers, context, ctx.engine.parameter_locks, notes)


def check(ctx: RequestContext, optimizers: Sequence[HostedOptimizer], id: ContextId) -> None:
    """Raises the error with which one of the steps would fail before it changes anything."""
    context = ctx.engine.contexts.get(id)
    if context is not None:
        for optimizer in optimizers:
            optimizer.check(context)


def check_rows(engine: Engine, handles: Iterable[Handle], marks: Sequence[int]) -> None:
    """Raises `RowsMovedError` if rows of tables are elsewhere than the sender of a step knows, who would leave out the
    gradients of those there: hosted code has looked them up where they are."""
    for handle, mark in zip(handles, marks, strict=False):
        for parameter in optimizer_of(engine.registry.find(Ref.from_message(handle))).parameters:
            if isinstance(parameter, AllRows):
                parameter.table.check_routing(mark)


def found(ctx: RequestContext, handles: Iterable[Handle]) -> list[HostedOptimizer]:
    """Different optimizers. Raises `InvalidArgumentError` if one is named twice."""
    found = [optimizer_of(ctx.engine.registry.find(Ref.from_message(handle))) for handle in handles]
    if len(set(map(id, found))) < len(found):
        raise InvalidArgumentError("an optimizer is named twice among those that step together")
    return found


def note_attempt(engine: Engine, request: Any, effects: Effects | None = None) -> None:
    """Has a pass that its trainer may run again know which of its steps other attempts have applied. The request names
    the run in its context. Raises as `Contexts.get`."""
    message = request.context
    if effects is not None:
        effects.attempts(message.trainer, message.run)
    id = fields.context_id(request)
    try:
        context = engine.contexts.get(id)
    except ContextLostError:
        if id not in engine.prepared:
            raise
        return
    if context is not None and context.attempt is None:
        applied = engine.contexts.runs.of(message.trainer, message.run, message.runs_from)
        context.begin_attempt(applied, (message.trainer, message.run))
    for table in list(engine.object_counts.tables.values()):
        if table.applied and context is not None:
            _count_once(engine, context, table)


def _count_once(engine: Engine, context: PassContext, table: RowsOfTable) -> None:
    """Has the next step of the optimizer of a table leave out the rows to which it was applied before they came."""
    attempt = context.attempt
    if attempt is None or attempt.of is None:
        return
    context.parts.pop(id(table.parameter), None)
    trainer, run = digest_of(attempt.of[0]), attempt.of[1]
    if (trainer, run) not in table.applied.runs:
        return
    for each in engine.optimizers_of(table.parameter):
        number = each.value.number
        slots = table.applied.get(AppliedStep(trainer, run, attempt.place_of(number)))
        if slots is None or attempt.was_applied(number):
            continue
        if (table.routing.slots(table.owner) & ~slots).any():
            context.parts[id(table.parameter)] = partial(without, table.parameter, slots)
        else:
            attempt.was_applied_elsewhere(number)


def why_left_out(attempt: Attempt | None, optimizer: HostedOptimizer) -> str:
    """Why the latest step of an attempt was not made; empty if it was made."""
    return REPEATED if attempt is not None and attempt.was_left_out(optimizer.number) else ""


def _leave_out(rounds: Aggregator | None, reply: pb.StepReply) -> None:
    if rounds is not None and rounds.owners:
        round_messages.tell_policy(reply, rounds)
    else:
        reply.by_itself = True
