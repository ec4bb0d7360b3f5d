"""The requests of optimizers with rounds over several owners. One owner decides, and trainers tell the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ps_service.execution.deferred import Deferred
from ps_service.policies.coordinator import Coordinator
from ps_service.policies.offers import OfferKey
from ps_service.requests import fields, reported_values, round_messages
from ps_service.training.following import Following
from ps_service.training.optimizers import optimizer_of
from ps_wire.errors import InvalidArgumentError, NameConflictError
from ps_wire.runtime.noop import noop
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_service.passes.pass_context import PassContext
    from ps_service.requests.context import RequestContext
    from ps_service.sessions.effects import Effects
    from ps_service.training.aggregator import Aggregator
    from ps_service.training.following import Settled
    from ps_service.training.optimizers import HostedOptimizer, Note
    from ps_wire.policies import Policy


def begin(engine: Engine, optimizer: HostedOptimizer, owners: Sequence[str], policy: Policy) -> None:
    """Gives a new optimizer its policy, and its place among several owners. Raises as `place`."""
    if len(owners) < 2:
        engine.memberships.change_policy(optimizer, policy)
    else:
        place(engine, optimizer, owners, policy)


def place(engine: Engine, optimizer: HostedOptimizer, owners: Sequence[str], policy: Policy) -> None:
    """Gives an optimizer without rounds its place in those over several owners. Steps that trainers have begun are
    applied by themselves: see `step_apart`. Raises `InvalidArgumentError` if the owners are not in order with this one
    among them, and `NameConflictError` if it has rounds over others, or for this owner alone."""
    name = engine.name
    if name not in owners or list(owners) != sorted(set(owners)):
        raise InvalidArgumentError(
            f"the owners of an optimizer are named in order, with {name!r} among them: not {', '.join(owners)}"
        )
    aggregator = engine.memberships.aggregator_of(optimizer)
    if name == owners[0]:
        aggregator.lead(owners, Coordinator(policy, owners[1:], optimizer.version))
    else:
        following = Following(aggregator.steps, policy)
        following.queue.submit = engine.compute.submit
        aggregator.follow(owners, following)
    if aggregator.owners != tuple(owners):
        raise NameConflictError(f"the optimizer has the policy {aggregator.policy} on {_there(aggregator)}")


def step_apart(
    ctx: RequestContext,
    optimizer: HostedOptimizer,
    aggregator: Aggregator,
    request: pb.StepRequest,
    reply: pb.StepReply,
    noting: Callable[[Effects, HostedOptimizer, PassContext], Note],
) -> None:
    """Answers a trainer that does not know yet that the optimizer has rounds over several owners. It begins its step
    anew, unless another owner had no rounds yet, and has applied its part; what notes that is made by `noting`."""
    if request.finish:
        context = ctx.engine.contexts.get(fields.context_id(request))

        def step() -> int:
            if context is None:
                return optimizer.version
            note = None if ctx.effects is None else noting(ctx.effects, optimizer, context)
            return aggregator.step_outside(context, note)

        reply.version = reported_values.step_with(ctx, optimizer, request, reply, step, context)
    else:
        round_messages.tell_policy(reply, aggregator)


def check(hosted: HostedObject, optimizer: HostedOptimizer, owners: Sequence[str]) -> None:
    """Raises `NameConflictError` if an optimizer has rounds over other owners than a trainer asks for."""
    rounds = optimizer.rounds
    if rounds is not None and rounds.owners != (tuple(owners) if len(owners) > 1 else ()):
        raise NameConflictError(
            f"{hosted.name!r} exists already, and its policy {rounds.policy} is for its parameters on {_there(rounds)}"
        )


def _there(aggregator: Aggregator) -> str:
    return " and ".join(aggregator.owners) or "this owner alone"


def tell(ctx: RequestContext, optimizer: HostedOptimizer, message: pb.Decisions) -> None:
    """Writes the decisions that other owners may not know, if this one decides for several."""
    rounds = optimizer.rounds
    if rounds is not None and rounds.coordinator is not None:
        round_messages.write(message, rounds.decisions(ctx.trainer, {}))


def describe(optimizer: HostedOptimizer, part: pb.PartState) -> None:
    """Writes how far an optimizer over several owners has come, and the others, as far as that is known here."""
    rounds = optimizer.rounds
    part.version = part.number = optimizer.version
    if rounds is None or not rounds.owners:
        part.known.update(optimizer.beside)
    elif rounds.following is not None:
        part.number = part.known[rounds.owners[0]] = rounds.following.applied
    else:
        part.known.update(rounds.carried_out())
        part.number = rounds.last_decision()


def gone_back(ctx: RequestContext, hosted: HostedObject, optimizer: HostedOptimizer, found: pb.GoneBack) -> None:
    """Goes on with an owner that has started again with an older state, and tells of it."""
    optimizer.beside.pop(found.owner, None)
    if ctx.effects is None:
        return  # it is replayed
    ctx.repeats("set_options", pb.SetOptionsRequest(optimizer=hosted.ref.to_message(), gone_back=found))
    text = (
        f"owner {found.owner!r} has gone back to version {found.now}, from version {found.before} or a later one, of "
        f"what {optimizer.title} is a part of. Steps since then are lost there, and stay on the other owners"
    )
    ctx.engine.events.note("gone_back", text, "error", trainer=ctx.trainer.hex()[:8], subject=hosted.name, by=ctx.by())


def hold(ctx: RequestContext, request: pb.HoldRequest, reply: pb.HoldReply) -> None:
    """Holds the gradients of a context until a decision names them, or tells when this owner drains."""
    optimizer = optimizer_of(ctx.find(request.optimizer))
    following = _following(optimizer)
    if request.watch:
        ctx.defer(following.watch(), noop)
        return
    id = fields.context_id(request)
    context, steps = ctx.engine.contexts.get(id), following.steps
    key = OfferKey(ctx.trainer, request.number, request.epoch)
    contribution, read = steps.contribution(context), steps.read_version(context)
    if ctx.effects is not None:
        ctx.effects.take_turn()
        ctx.effects.check(contribution.nbytes)
    reply.applied = following.hold(key, contribution, read)
    if ctx.effects is not None:
        ctx.effects.holds(optimizer, key, following.held_for(key))
    ctx.engine.sessions.stepped(ctx.trainer, id)


def settle(ctx: RequestContext, request: pb.SettleRequest, reply: pb.SettleReply) -> None:
    """Carries out decisions, or frees gradients that were not offered."""
    optimizer = optimizer_of(ctx.find(request.optimizer))
    following, effects = _following(optimizer), ctx.effects
    key = OfferKey(ctx.trainer, request.number, request.epoch)
    if effects is not None:
        effects.keep_answer()
    if request.release:
        if effects is not None:
            effects.take_turn()
        if following.release(key) and effects is not None:
            effects.lets_go(optimizer, key)
    done = following.settle(key, request.decisions.base, round_messages.read(request.decisions), request.step)

    def finish(settled: Settled) -> None:
        reply.applied, reply.version = settled.applied, settled.version
        reply.missing, reply.failed = settled.missing, settled.failed

    ctx.defer(Deferred(done), finish)


def _following(optimizer: HostedOptimizer) -> Following:
    following = None if optimizer.rounds is None else optimizer.rounds.following
    if following is None:
        raise InvalidArgumentError("this owner does not follow the rounds of another owner")
    return following
