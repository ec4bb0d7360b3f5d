"""The handler of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.requests import attempts, fields, offers, reported_values, together
from ps_service.training.optimizers import optimizer_of

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.v1 import operations_pb2 as pb


def step(ctx: RequestContext, request: pb.StepRequest, reply: pb.StepReply) -> None:
    """Applies the gradients of a context, or only checks them."""
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
    else:
        offers.step(ctx, optimizer, request, reply)


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
