"""The handler of steps: the plain one first, and then what policies and several optimizers add."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ps_service.requests import attempts, fields, offers, reported_values, spanning, together
from ps_service.training.optimizers import optimizer_of

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.v1 import operations_pb2 as pb


def step(ctx: RequestContext, request: pb.StepRequest, reply: pb.StepReply) -> None:
    """Applies the gradients of a context, or only checks them.

    If the optimizer has a policy, the gradients are offered to its rounds, and the reply comes when their trainer may
    go on.
    """
    if request.context.run:
        attempts.note(ctx.engine, request)
    optimizer = optimizer_of(ctx.find(request.optimizer))
    if optimizer.rounds is None and not (request.more or request.check_only or request.HasField("offer")):
        _apply(ctx, optimizer, request, reply)
    elif request.more:
        together.step(ctx, request, reply)
    elif request.HasField("offer"):
        offers.offer_to_owners(ctx, optimizer, request, reply)
    elif request.check_only:
        _check(ctx, optimizer, request, reply)
    elif request.apart and optimizer.rounds is not None and optimizer.rounds.owners:
        spanning.step_apart(ctx, optimizer, optimizer.rounds, request, reply)
    else:
        id, values = fields.context_id(request), reported_values.read(ctx, request.values)
        waiting = offers.offer(ctx, optimizer, id, fields.wait_seconds(request), values)
        ctx.defer(waiting, partial(offers.describe, ctx, id, reply))


def _apply(ctx: RequestContext, optimizer: HostedOptimizer, request: pb.StepRequest, reply: pb.StepReply) -> None:
    """Steps at once. Values count also if the pass has no gradients here, because others may have some."""
    context = ctx.engine.contexts.get(fields.context_id(request))

    def step() -> int:
        return optimizer.version if context is None else optimizer.step(context)

    if request.values:
        values = reported_values.read(ctx, request.values)
        reply.version, of_round = reported_values.counted(ctx, optimizer, values, step, attempts.of(context))
        reported_values.write(ctx, reply, of_round)
    else:
        reply.version = step()
    if context is not None:
        reply.counted, reply.staleness = 1, context.last_staleness
        reply.dropped = attempts.reason(context.attempt, optimizer)
        ctx.engine.sessions.stepped(ctx.trainer, context.id)


def _check(ctx: RequestContext, optimizer: HostedOptimizer, request: pb.StepRequest, reply: pb.StepReply) -> None:
    reported_values.check(ctx, optimizer, request.values)
    context = ctx.engine.contexts.get(fields.context_id(request))
    if context is not None:
        optimizer.check(context)
    reply.version = optimizer.version
