"""The operations that make objects, and how objects are made again after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from ps_service.execution.deferred import Deferred
from ps_service.hosting import creation
from ps_service.hosting.objects import CreationSpec
from ps_service.requests import asked, error_answers, fields, incidents, layouts, offers, spanning
from ps_service.training.aggregator import PLAIN
from ps_service.training.creation import create_optimizer, create_scheduler
from ps_service.training.optimizers import optimizer_of
from ps_wire import policies
from ps_wire.codec.messages import messages_in
from ps_wire.errors import InvalidArgumentError, NameConflictError
from ps_wire.refs import Ref
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject
    from ps_service.requests.context import RequestContext
    from ps_service.training.optimizers import HostedOptimizer
    from ps_wire.policies import Policy

T = TypeVar("T")
M = TypeVar("M", bound=Message)

_READS: dict[int, str] = {pb.READS_CONSISTENT: "consistent", pb.READS_INCONSISTENT: "inconsistent"}
_NON_FINITE: dict[int, str] = {pb.NON_FINITE_APPLY: "apply", pb.NON_FINITE_REFUSE: "refuse"}


def create(ctx: RequestContext, request: pb.CreateRequest, reply: pb.CreateReply) -> None:
    """Makes an object of an allowed class, or finds the one of that name. No thread waits while another makes it."""
    being_made = ctx.engine.registry.being_made(request.name)
    if being_made is not None and ctx.deferred is None:
        ctx.defer(Deferred(being_made), lambda _: create(ctx, request, reply), reads=True)
        return
    _describe(ctx, reply, make_object(ctx, request))
    reply.warning = error_answers.older_source(ctx.engine, "create", request) if request.source else ""


def optimizer(ctx: RequestContext, request: pb.OptimizerRequest, reply: pb.CreateReply) -> None:
    """Makes an optimizer, or finds the one of that name."""
    asks_for_one = request.HasField("attach")
    found = (ctx.find(request.attach), False) if asks_for_one else make_optimizer(ctx, request)
    made = layouts.checked(found[0]) if asks_for_one else optimizer_of(found[0])
    hosted = _describe(ctx, reply, found)
    over_owners = len(request.owners) > 1 or len(made.spread.groups) > 0
    rounds = made.rounds
    is_following = rounds is not None and rounds.following is not None
    if not reply.created:
        if not asks_for_one:
            spanning.check(hosted, made, request.owners)
        # Owners that follow hear of a change of the policy later.
        if request.HasField("policy") and not is_following:
            _check_policy(hosted, made, policies.from_plain(ctx.read(request.policy)), over_owners)
    # Who asks for an optimizer is about to step it, so the first round waits for all that have come. A table comes with
    # its optimizer, also to those that only read it.
    if not is_following and not request.joins_with_step:
        offers.join(ctx, made, reply.created)
    if rounds is not None:
        reply.owners.extend(rounds.owners)
    offers.when_handled(ctx, made, partial(_tell_rounds, ctx, made, over_owners, reply))


def _tell_rounds(ctx: RequestContext, optimizer: HostedOptimizer, over_owners: bool, reply: pb.CreateReply) -> None:
    rounds = optimizer.rounds
    if rounds is not None and rounds.coordinator is not None:
        reply.epoch = rounds.decisions(ctx.trainer, {}).epoch
    if over_owners and ctx.engine.durability.log is not None:
        spanning.describe(optimizer, reply.part)


def scheduler(ctx: RequestContext, request: pb.SchedulerRequest, reply: pb.CreateReply) -> None:
    """Makes a learning-rate scheduler, or finds the one of that name."""
    _describe(ctx, reply, make_scheduler(ctx, request))


def _describe(ctx: RequestContext, reply: pb.CreateReply, made: tuple[HostedObject, bool]) -> HostedObject:
    hosted, reply.created = made
    ctx.describe(reply.object, hosted)
    if reply.created:
        if ctx.effects is not None:
            ctx.effects.changes(hosted)
        incidents.made(ctx, hosted)
    return hosted


def make_object(ctx: RequestContext, request: pb.CreateRequest, object_id: str = "") -> tuple[HostedObject, bool]:
    """An object of an allowed class, made now or found under its name."""
    cls = ctx.engine.allowlist.hosted(request.class_name)
    _, args, kwargs = ctx.read_arguments(request)
    seed = request.default_seed if request.HasField("default_seed") else None
    wanted = asked.called(cls, args, kwargs)
    if request.HasField("seed"):
        wanted["seed"] = seed = request.seed
    made = creation.create(
        ctx.engine,
        request.class_name,
        args,
        kwargs,
        name=request.name,
        seed=seed,
        fingerprint=asked.fingerprint(ctx, cls, request, wanted),
        object_id=object_id,
        replace=request.replace,
        account=ctx.account,
    )
    return with_spec(ctx, "create", request, made)


def make_optimizer(ctx: RequestContext, request: pb.OptimizerRequest, object_id: str = "") -> tuple[HostedObject, bool]:
    """An optimizer, made now or found under its name."""
    cls = ctx.engine.allowlist.optimizer(request.class_name)
    groups = [(fields.refs(group.parameters), fields.options(ctx, group.options)) for group in request.groups]
    prepare = None
    if request.HasField("policy"):
        policy = policies.from_plain(ctx.read(request.policy))
        prepare = partial(spanning.begin, ctx.engine, owners=request.owners, policy=policy)
    options = fields.options(ctx, request.options)
    reads, non_finite = _known(_READS, request.reads, "reads"), _known(_NON_FINITE, request.non_finite, "non_finite")
    wanted = asked.called(cls, (), options, {"parameters": 0})
    wanted |= {"reads": reads, "non_finite": non_finite} | asked.grouped(ctx, groups)
    made = create_optimizer(
        ctx.engine,
        request.class_name,
        groups,
        options,
        name=request.name,
        consistent=reads == "consistent",
        refuses_non_finite=non_finite == "refuse",
        fingerprint=asked.fingerprint(ctx, cls, request, wanted),
        object_id=object_id,
        prepare=prepare,
        replace=request.replace,
        account=ctx.account,
        spread=layouts.spread_of(request),
    )
    return with_spec(ctx, "optimizer", request, made)


def make_scheduler(ctx: RequestContext, request: pb.SchedulerRequest, object_id: str = "") -> tuple[HostedObject, bool]:
    """A learning-rate scheduler, made now or found under its name."""
    cls = ctx.engine.allowlist.scheduler(request.class_name)
    _, args, kwargs = ctx.read_arguments(request)
    wanted = asked.called(cls, args, kwargs, {"optimizer": request.optimizer.object_id})
    made = create_scheduler(
        ctx.engine,
        request.class_name,
        Ref.from_message(request.optimizer),
        args,
        kwargs,
        name=request.name,
        fingerprint=asked.fingerprint(ctx, cls, request, wanted),
        object_id=object_id,
        replace=request.replace,
        account=ctx.account,
    )
    return with_spec(ctx, "scheduler", request, made)


def _check_policy(hosted: HostedObject, optimizer: HostedOptimizer, asked: Policy, over_owners: bool) -> None:
    if over_owners and optimizer.rounds is None:
        raise NameConflictError(
            f"{hosted.name!r} exists already, without a policy: its owners step each by itself. Leave policy out to "
            "use it as it is, or give it one for all with set_policy()"
        )
    policy = PLAIN if optimizer.rounds is None else optimizer.rounds.policy
    if policy != asked:
        raise NameConflictError(
            f"{hosted.name!r} exists already, with the policy {policy}, not {asked}. Leave policy "
            "out to use it as it is, or change it for all with set_policy()"
        )


def _known(table: Mapping[int, T], number: int, what: str) -> T:
    try:
        return table[number]
    except KeyError:
        raise InvalidArgumentError(f"{what} {number} is not one that this owner knows; is it older than you?") from None


def with_spec(
    ctx: RequestContext, operation: str, request: Message, made: tuple[HostedObject, bool]
) -> tuple[HostedObject, bool]:
    """Sets the creation spec of a new object, if the owner keeps checkpoints; returns `made`."""
    hosted, is_new = made
    if is_new and ctx.engine.durable:
        # The buffer of the request will be reused.
        payload = None if ctx.payload is None else ctx.payload.copy()
        request = type(request).FromString(request.SerializeToString())
        named = {Ref.from_message(handle)._replace(parameter="") for handle in messages_in(request, Handle)}
        dependencies = [ctx.engine.registry.find(ref) for ref in named if ref.owner == ctx.engine.name]
        hosted.creation_spec = CreationSpec(
            operation, request, payload, tuple(dependencies), len(dependencies) == len(named)
        )
    return made
