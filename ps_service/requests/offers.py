"""Steps of optimizers with a policy: they offer the gradients of a pass to a round, and no thread waits for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final

from ps_service.execution.deferred import Deferred
from ps_service.policies.offers import OfferKey
from ps_service.requests import fields, incidents, reported_values, round_messages
from ps_service.training.optimizers import optimizer_of
from ps_service.training.round_gradients import RoundGradients, Term
from ps_service.training.waiting_offers import Outcome
from ps_wire import errors
from ps_wire.attempts import REPEATED, Attempt
from ps_wire.errors import SESSION_ENDED, InvalidArgumentError, SessionLostError
from ps_wire.refs import ContextId, Ref
from ps_wire.runtime.noop import noop

if TYPE_CHECKING:
    from ps_service.passes.pass_context import PassContext
    from ps_service.requests.context import RequestContext
    from ps_service.training.aggregator import Aggregator
    from ps_service.training.optimizers import HostedOptimizer
    from ps_service.training.round_gradients import Contribution
    from ps_wire.reported import Reported
    from ps_wire.v1 import operations_pb2 as pb
    from ps_wire.v1.values_pb2 import Handle


Result = Outcome | BaseException
"""What became of a step, or its error."""

_OFFERS: Final = b"offers"
"""Behind the id of a trainer: names its offers by the numbers of their requests, as if they were runs."""


def offer(
    ctx: RequestContext,
    optimizer: HostedOptimizer,
    id: ContextId,
    seconds: float,
    values: Mapping[str, Reported],
    number: int = 0,
    epoch: int = 0,
) -> Deferred:
    """Offers the gradients of a context to the rounds of an optimizer that has a policy; the result is the outcome.

    If the rounds are over several owners, `number` and `epoch` are those of the offer and of the trainer's join, as it
    knows them. `seconds` is how long to wait for other trainers, without limit if it is 0. Raises as
    `HostedOptimizer.check`, and as `_joined`.
    """
    aggregator, own = _joined(ctx, optimizer, number), _of_request(ctx)
    if own is not None and own.was_applied(optimizer.number):
        return _has_counted(optimizer, own)
    context = ctx.engine.contexts.get(id)
    attempt = None if context is None else context.attempt
    if attempt is not None and attempt.was_applied(optimizer.number):
        return _has_counted(optimizer, attempt, REPEATED)
    offered = aggregator.steps.contribution(context)
    if attempt is None:
        offered = offered._replace(attempt=own)
    return _offer(ctx, optimizer, aggregator, offered, values, seconds, number, epoch)


def offer_push(
    ctx: RequestContext,
    optimizer: HostedOptimizer,
    pushed: Contribution,
    values: Mapping[str, Reported],
    seconds: float,
) -> Deferred:
    """Like `offer`, with the gradients that a replica has pushed."""
    aggregator = _joined(ctx, optimizer, number=0)
    optimizer.check(RoundGradients([Term(pushed, 1.0)], 1))
    if pushed.attempt is None and (own := _of_request(ctx)) is not None:
        if own.was_applied(optimizer.number):
            return _has_counted(optimizer, own)
        pushed = pushed._replace(attempt=own)
    return _offer(ctx, optimizer, aggregator, pushed, values, seconds)


def offer_to_owners(
    ctx: RequestContext, optimizer: HostedOptimizer, request: pb.StepRequest, reply: pb.StepReply
) -> None:
    """Offers gradients to rounds over several owners, takes an offer back, or only tells the decisions. Raises
    `InvalidArgumentError` if this owner does not decide the rounds, or the offer has no number."""
    aggregator, asked, seconds = optimizer.aggregator, request.offer, fields.wait_seconds(request)
    if aggregator is None or aggregator.coordinator is None:
        raise InvalidArgumentError("this owner does not decide the rounds of the optimizer")
    applied = round_messages.read_applied(asked.applied)
    if asked.withdraw:
        if asked.number:
            aggregator.withdraw(OfferKey(ctx.trainer, asked.number, asked.epoch))

        def tell() -> None:
            reply.version = optimizer.version
            round_messages.write(reply.decisions, aggregator.decisions(ctx.trainer, applied))

        when_handled(ctx, optimizer, tell)
        return
    if not asked.number:
        raise InvalidArgumentError("an offer to rounds over several owners needs a number")
    # What was carried out by then is noted first: this owner may have to continue after it.
    aggregator.decisions(ctx.trainer, applied)
    values, id = reported_values.read(ctx, request.values), fields.context_id(request)
    waiting = offer(ctx, optimizer, id, seconds, values, asked.number, asked.epoch)

    def finish(outcome: Outcome) -> None:
        describe(ctx, id, reply, outcome)
        round_messages.write(reply.decisions, aggregator.decisions(ctx.trainer, applied))

    ctx.defer(waiting, finish)


def _of_request(ctx: RequestContext) -> Attempt | None:
    """An offer as an attempt that has the number of its request. If the owner has a log, and is killed after the offer
    has counted and before the log has the answer, the request is sent again, and its pass is lost."""
    if ctx.effects is None or not ctx.number:
        return None
    of = ctx.trainer + _OFFERS, ctx.number
    return Attempt(ctx.engine.contexts.runs.of(*of), of)


def _has_counted(optimizer: HostedOptimizer, attempt: Attempt, reason: str = "") -> Deferred:
    """What became of an offer that has counted before."""
    attempt.passed(optimizer.number, applied=False)
    done: Future[Outcome] = Future()
    done.set_result(Outcome(attempt.version_of(optimizer.number, optimizer.version), 0, 1, reason))
    return Deferred(done)


def _joined(ctx: RequestContext, optimizer: HostedOptimizer, number: int) -> Aggregator:
    """What collects the gradients, once the trainer of an offer has joined. Raises as `join`, and
    `InvalidArgumentError` if the rounds are over several owners and the offer has no number."""
    aggregator = optimizer.aggregator
    assert aggregator is not None  # it has a policy, or had one a moment ago
    if aggregator.owners and not number:
        raise InvalidArgumentError(
            f"the policy of this optimizer is for its parameters on {' and '.join(aggregator.owners)}: step all of them"
        )
    join(ctx, optimizer)
    return aggregator


def _offer(
    ctx: RequestContext,
    optimizer: HostedOptimizer,
    aggregator: Aggregator,
    offered: Contribution,
    values: Mapping[str, Reported],
    seconds: float,
    number: int = 0,
    epoch: int = 0,
) -> Deferred:
    if ctx.effects is not None:
        ctx.effects.check(sum(each.nbytes for each in offered.gradients if each is not None and not each.is_sparse))
        ctx.effects.keep_answer()
    report = aggregator.reported.expect(ctx.trainer, values)
    offered, read = offered._replace(report=report), aggregator.steps.read_version(offered.context)
    try:
        key, future = aggregator.offer(ctx.trainer, offered, read, number, epoch)
    except BaseException:
        aggregator.reported.drop(report)
        raise
    # An offer joins again if the session has ended since `join`.
    _check_session(ctx, optimizer)
    if seconds and not future.done():
        ctx.engine.compute.unless_done(seconds, future, partial(aggregator.expire, key, seconds))
    return Deferred(future, cancel=partial(aggregator.withdraw, key))


def join(ctx: RequestContext, optimizer: HostedOptimizer, is_new: bool = False) -> None:
    """Rounds of the optimizer, which the request itself may have made, may wait for the trainer until its session ends.
    Raises `SessionLostError` if it has ended."""
    is_noted = is_new or optimizer.aggregator is not None or ctx.trainer in optimizer.trainers
    if ctx.effects is not None and not is_noted:
        ctx.effects.joins(optimizer, ctx.trainer)
    ctx.engine.memberships.add(ctx.trainer, optimizer)
    _check_session(ctx, optimizer)


def when_handled(ctx: RequestContext, optimizer: HostedOptimizer, finish: Callable[[], None] = noop) -> None:
    """Writes the rest of the reply, once what was told to the rounds of an optimizer is handled: the steps of rounds
    that it ended are applied, and it is in the log, if there is one."""
    if optimizer.aggregator is None:
        finish()
        return
    if ctx.effects is not None:
        ctx.effects.keep_answer()
    ctx.defer(Deferred(optimizer.aggregator.handled()), lambda _: finish())


def _check_session(ctx: RequestContext, optimizer: HostedOptimizer) -> None:
    """Ends the membership of a trainer whose session ended before it could be told of this membership."""
    if ctx.engine.sessions.get(ctx.trainer) is None:
        ctx.engine.memberships.remove(ctx.trainer, optimizer)
        raise SessionLostError(SESSION_ENDED)


def describe(ctx: RequestContext, id: ContextId | None, reply: pb.StepReply, outcome: Outcome) -> None:
    """Writes what became of an offer of a pass, or of a push, and counts it as a step of its trainer."""
    ctx.engine.sessions.stepped(ctx.trainer, id)
    reply.version, reply.staleness, reply.counted = outcome.version, outcome.staleness, outcome.counted
    reply.dropped = outcome.reason
    if outcome.values:
        ctx.write(reply.values, dict(outcome.values))


def offer_all(
    ctx: RequestContext,
    optimizers: Sequence[Handle],
    id: ContextId,
    seconds: float,
    step: Callable[[HostedOptimizer, PassContext], int],
) -> Deferred:
    """Steps optimizers by `step`, which returns the version, or offers the gradients to their rounds, up to the first
    that raises. The result is the list of what became of them, in order, with the error of the last one if it has
    failed."""
    results: list[Result | Deferred] = []
    for handle in optimizers:
        try:
            optimizer = optimizer_of(ctx.engine.registry.find(Ref.from_message(handle)))
            if optimizer.rounds is None:
                context = ctx.engine.contexts.get(id)
                version = optimizer.version if context is None else step(optimizer, context)
                results.append(Outcome(version, 0, 1))
            else:
                results.append(offer(ctx, optimizer, id, seconds, {}))
        except BaseException as error:
            results.append(error)
            break
    waiting = [each for each in results if isinstance(each, Deferred)]
    return Deferred(_all_done(waiting), lambda _: [_result(each) for each in results], partial(_drop, waiting))


def describe_all(ctx: RequestContext, id: ContextId, reply: pb.BackwardReply, results: Sequence[Result]) -> bool:
    """Writes the versions up to the first error, and the error; returns whether there is none."""
    for result in results:
        if isinstance(result, BaseException):
            describe_error(ctx, reply, result)
            return False
        reply.versions.append(result.version)
        describe(ctx, id, reply.stepped.add(), result)
    return True


def describe_error(ctx: RequestContext, reply: pb.BackwardReply, raised: BaseException) -> None:
    """Writes the error of a step. It is part of the reply, because the backward before has succeeded."""
    reply.step_error.CopyFrom(errors.to_message(incidents.explained(ctx, "a step", raised)))


def _result(each: Result | Deferred) -> Result:
    if not isinstance(each, Deferred):
        return each
    try:
        outcome: Outcome = each.result()
        return outcome
    except BaseException as error:
        return error


def _all_done(waiting: Sequence[Deferred]) -> Future[None]:
    """A future that is done when all of these are."""
    done: Future[None] = Future()
    ended = itertools.count()  # rounds of two optimizers may end in two threads at the same time

    def one_more() -> None:
        if next(ended) == len(waiting):
            done.set_result(None)

    for each in waiting:
        each.when_done(one_more)
    one_more()
    return done


def _drop(waiting: Sequence[Deferred]) -> None:
    for each in waiting:
        each.drop()
