"""The handlers of pulls and pushes of replicas."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from ps_service.passes.calls import SMALL_INLINE_BYTES
from ps_service.requests import fields, offers, reported_values, steps
from ps_service.requests.needs import NEEDS
from ps_service.requests.progress import Progress
from ps_service.training import pulls, pushes
from ps_service.training.optimizers import HostedOptimizer, optimizer_of
from ps_service.training.round_gradients import RoundGradients, Term
from ps_service.training.waiting_offers import Outcome
from ps_wire.attempts import Attempt
from ps_wire.compression.codec import Codec, Encoded, is_description
from ps_wire.compression.registry import check_suitable, codec_named, encode
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import Ref
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    import torch

    from ps_service.hosting.objects import HostedObject
    from ps_service.requests.context import RequestContext

_MOST_CODECS: Final = 64
"""The most different codecs of one pull."""


def pull(ctx: RequestContext, request: pb.PullRequest, reply: pb.PullReply) -> None:
    """Copies what a replica lacks."""
    _pull(ctx, ctx.find(request.target), request, reply)


def push(ctx: RequestContext, request: pb.PushRequest, reply: pb.PushReply) -> None:
    """Steps with the gradients of a replica, or offers them to a round. Then copies what the replica lacks."""
    if ctx.asker is not None and request.HasField("pull"):
        # Before anything steps: the answer brings what a pull does.
        ctx.engine.access.check(ctx.asker.identity, NEEDS["pull"])
    hosted = ctx.find(request.target)
    optimizer = optimizer_of(ctx.engine.registry.find(Ref.from_message(request.optimizer)))
    if ctx.progress is not None and ctx.progress.pushed is not None:
        # On the event loop, the step was made and the copy would have had to wait.
        reply.left_out.extend(ctx.progress.left_out)
        _finish(ctx, hosted, request, reply, ctx.progress.pushed)
        return
    pushed = pushes.read(hosted, request.positions, ctx.read_plain(request.gradients), request.steps)
    attempt = None
    if request.run:
        # It may be made again. Unlike a pass, a push has no end that would refuse it if it comes late.
        applied = ctx.engine.contexts.runs.of(ctx.trainer, request.run, request.runs_from, may_be_over=False)
        attempt = Attempt(applied, (ctx.trainer, request.run))
    made = pushes.contribution(optimizer, hosted, pushed)._replace(attempt=attempt)
    left_out = pushes.left_out(optimizer, hosted, request.positions, made)
    reply.left_out.extend(left_out)
    values = reported_values.read(ctx, request.values)
    if optimizer.rounds is not None:
        waiting = offers.offer_push(ctx, optimizer, made, values, fields.wait_seconds(request))
        ctx.defer(waiting, partial(_finish, ctx, hosted, request, reply))
        return
    alone = RoundGradients([Term(made, 1.0)], 1)
    step = partial(optimizer.step, alone)
    if ctx.effects is not None:
        if request.run:
            ctx.effects.attempts(ctx.trainer, request.run)
        step = partial(optimizer.step, alone, steps.noting(ctx.effects, optimizer, alone))
    version, values_of_round = reported_values.counted(ctx, optimizer, values, step, attempt)
    reason = steps.why_left_out(attempt, optimizer)
    outcome = Outcome(version, alone.last_staleness, 1, reason, values_of_round)
    ctx.progress = Progress(pushed=outcome, left_out=left_out)
    _finish(ctx, hosted, request, reply, outcome)


def add_gradients(ctx: RequestContext, request: pb.AddGradientsRequest, reply: pb.AddGradientsReply) -> None:
    """Adds the gradients of a replica to those of a pass."""
    hosted = ctx.find(request.target)
    covered = pushes.check_covered(optimizer_of(ctx.engine.registry.find(Ref.from_message(request.optimizer))), hosted)
    id = fields.context_id(request)
    ctx.engine.held.check_limit(id.trainer)
    if ctx.engine.quotas.is_on:
        ctx.engine.contexts.check_quota(ctx.engine.quotas, id, ctx.trainer)
    pushed = pushes.read(hosted, request.positions, ctx.read_plain(request.gradients), request.steps)
    context = ctx.engine.contexts.open(id, ctx.trainer)
    context.bring([each.gradient for each in pushed], [each.steps for each in pushed])
    left_out, not_stepped = pushes.not_taken(covered, hosted, request.positions, pushed)
    reply.left_out.extend(left_out)
    reply.not_stepped.extend(not_stepped)


def expected_seconds(ctx: RequestContext, request: pb.PushRequest) -> float:
    """How long a push takes on the event loop; infinity if it must not run there. Raises if an object is not here."""
    hosted = ctx.find(request.target)
    value = ctx.engine.registry.find(Ref.from_message(request.optimizer)).value
    size = 0 if ctx.payload is None else len(ctx.payload)
    if (
        size > SMALL_INLINE_BYTES
        or not isinstance(value, HostedOptimizer)
        or not (value.is_torchs and value.rounds is None)
        or sum(each.nbytes for each in hosted.parameters.values()) > SMALL_INLINE_BYTES
        or ctx.engine.durability.log is not None  # after the step it must not stop
    ):
        return float("inf")
    return value.latency.expected(size)


def _finish(
    ctx: RequestContext, hosted: HostedObject, request: pb.PushRequest, reply: pb.PushReply, outcome: Outcome
) -> None:
    offers.describe(ctx, None, reply.step, outcome)
    if request.HasField("pull"):
        _pull(ctx, hosted, request.pull, reply.pull)


def _pull(ctx: RequestContext, hosted: HostedObject, request: pb.PullRequest, reply: pb.PullReply) -> None:
    if request.reads not in (pb.READS_CONSISTENT, pb.READS_INCONSISTENT):
        raise InvalidArgumentError(f"reads must be consistent or inconsistent, not {request.reads}")
    consistent = request.reads == pb.READS_CONSISTENT
    found = pulls.pull(ctx.engine.parameter_locks, hosted, request.marks, request.buffers_mark, consistent)
    reply.positions.extend(found.positions)
    reply.marks.extend(found.marks)
    reply.steps.extend(found.steps)
    reply.buffers_mark = found.buffers_mark
    ctx.write(reply.parameters, _encoded(ctx, request, found, len(hosted.parameters)))
    if found.buffers is not None:
        ctx.write(reply.buffers, found.buffers)


def _encoded(
    ctx: RequestContext, request: pb.PullRequest, found: pulls.Pulled, count: int
) -> list[torch.Tensor | Encoded]:
    """The values of an answer, with the codecs that the request asks for."""
    if not request.codec_of:
        return [*found.parameters]
    named = ctx.read(request.codecs)
    if not isinstance(named, list) or len(named) > _MOST_CODECS or len(request.codec_of) != count:
        raise InvalidArgumentError(
            f"a compressed pull has at most {_MOST_CODECS} codecs, and a number for each of {count} parameters"
        )
    codecs: list[Codec | None] = [None]
    for each in named:
        if not isinstance(each, (list, tuple)) or len(each) != 2 or not is_description(*each):
            raise InvalidArgumentError("a codec is described by its name and a dict of its parameters")
        codec = codec_named(*each)
        check_suitable(codec)
        codecs.append(codec)
    if max(request.codec_of) >= len(codecs):
        raise InvalidArgumentError(f"a parameter has codec {max(request.codec_of)} of {len(codecs) - 1}")
    chosen = [codecs[request.codec_of[position]] for position in found.positions]
    return [
        value if codec is None else encode(codec, value) for codec, value in zip(chosen, found.parameters, strict=True)
    ]
