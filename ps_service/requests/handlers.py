"""The handlers of operations: each reads a request, calls a function of the owner, and fills in the reply."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ps_service.execution.deferred import Deferred
from ps_service.hosting import creation
from ps_service.hosting.references import RRef
from ps_service.numerics.regions import numerics_of
from ps_service.passes import calls, propagation
from ps_service.passes.arguments import NO, REFERENCE, VALUE, Arguments, Invocation, Recording
from ps_service.requests import fields, incidents, layouts, noting, offers, spanning
from ps_service.requests.creation import with_spec
from ps_service.requests.plain import check_code
from ps_service.training import freezing, state_dicts
from ps_service.training.optimizers import optimizer_of
from ps_service.training.schedulers import HostedScheduler
from ps_wire import decorators, policies
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import CallKey, Ref, is_object_id
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject
    from ps_service.requests.context import RequestContext

_NO_REGION: Final = nullcontext()

_READS_RATES: Final = HostedScheduler.get_last_lr.__name__


def attach(ctx: RequestContext, request: pb.AttachRequest, reply: pb.AttachReply) -> None:
    """Finds an object by name or handle, or a part of an optimizer or scheduler by what it is a part of."""
    if request.HasField("part"):
        hosted = layouts.find(ctx, request.part)
    else:
        hosted = creation.attach(
            ctx.engine, request.name if request.HasField("name") else Ref.from_message(request.handle)
        )
    ctx.describe(reply.object, hosted)
    layouts.describe(reply, hosted)


def release(ctx: RequestContext, request: pb.ReleaseRequest, reply: pb.ReleaseReply) -> None:
    """Takes references back."""
    ctx.repeats("release", request)
    ctx.engine.registry.revoke(ctx.trainer, request.object_ids)


def delete(ctx: RequestContext, request: pb.DeleteRequest, reply: pb.DeleteReply) -> None:
    """Removes a named object and its dependents; of a table with other owners only if all of them are asked."""
    ctx.repeats("delete", request)
    registry = ctx.engine.registry
    found = registry.named(request.name) if not request.HasField("handle") else ctx.find(request.handle)
    if found.is_table and not request.everywhere and (owners := found.value.routing.owners) != (ctx.engine.name,):
        reply.owners.extend(owners)
        return
    # Nothing refers to them afterwards.
    dependents = incidents.dependents_of(found)
    incidents.deleted(ctx, registry.delete(found.name), dependents)


def call(ctx: RequestContext, request: pb.CallRequest, reply: pb.CallReply) -> None:
    """Runs a method or function; records the call if the request names a context."""
    recording = ctx.recording = _recording(ctx, request)
    result_id = request.result_id
    if result_id:
        if not is_object_id(result_id):
            raise InvalidArgumentError(f"{result_id!r} is no id for a result: 32 hexadecimal digits are")
        ctx.engine.registry.check_new(result_id)
        ctx.result_id = result_id
    with numerics_of(request) if request.HasField("numerics") else _NO_REGION:
        result = _called(ctx, request, recording)
    if isinstance(result, Deferred):
        ctx.defer(result, ctx.keep if result_id else partial(ctx.write, reply.result, once=True))
    elif result_id:
        ctx.keep(result)
    else:
        ctx.write(reply.result, result, once=True)


def _called(ctx: RequestContext, request: pb.CallRequest, recording: Recording | None) -> Any:
    """The result of a call, which may be a `Deferred`."""
    engine = ctx.engine
    if recording is not None:
        engine.held.check_limit(recording.context.trainer)
        if engine.quotas.is_on:
            engine.contexts.check_quota(engine.quotas, recording.context, ctx.trainer)
    keep = NO
    if ctx.result_id or request.keep:
        keep = VALUE if ctx.result_id else REFERENCE
        engine.held.check(ctx.trainer)
    training = None if request.own_mode else request.training
    if not request.function:
        target = ctx.find(request.target)
        if ctx.asker is not None:
            code = getattr(type(target.value), request.method or "forward", None)
            check_code(engine.access, ctx.asker.identity, request, code)
        if ctx.effects is not None and isinstance(target.value, HostedScheduler) and request.method != _READS_RATES:
            ctx.effects.take_turn()
            ctx.effects.check(0 if ctx.payload is None else 2 * len(ctx.payload))
            ctx.repeats("call", request)
        arguments, args, kwargs = ctx.read_arguments(request, request)
        asked = Invocation(arguments, args, kwargs, training, recording, keep, ctx.method)
        if target.is_table and ctx.effects is not None:
            share = args[0] if args else kwargs.get("share")
            tables = [target, *(each for each in arguments.handles if each.is_table)]
            noting.rows(ctx.effects, tables, request.method, share, recording is not None)
        if target.is_table and request.method in incidents.TELLS_ROWS:
            with incidents.rows(ctx, target, request.method):
                return calls.call(engine, target, request.method, asked)
        if target.is_table or ctx.effects is None:
            return calls.call(engine, target, request.method, asked)
        with noting.changes(ctx.effects, [target, *arguments.handles]):
            return calls.call(engine, target, request.method, asked)
    if ctx.asker is not None:
        check_code(engine.access, ctx.asker.identity, request, engine.allowlist.function(request.function))
    if keep is REFERENCE and engine.allowlist.is_hosted(request.function):
        made, _ = make_instance(ctx, request)
        if ctx.effects is not None:
            ctx.effects.changes(made)
        return RRef.to(made)
    function = engine.allowlist.function(request.function)
    arguments, args, kwargs = ctx.read_arguments(request, request)
    asked = Invocation(arguments, args, kwargs, training, recording, keep)
    with _NO_REGION if ctx.effects is None else noting.changes(ctx.effects, arguments.handles):
        return calls.call_function(engine, function, asked, decorators.is_deferred(function))


def fetch(ctx: RequestContext, request: pb.FetchRequest, reply: pb.FetchReply) -> None:
    """Copies the value of a handle."""
    ctx.recording = recording = _recording(ctx, request)
    arguments = Arguments(ctx.engine, None if recording is None else recording.context)
    ctx.write(reply.value, calls.fetch(ctx.engine, Ref.from_message(request.target), arguments, recording), once=True)


def gradients(ctx: RequestContext, request: pb.GradientsRequest, reply: pb.GradientsReply) -> None:
    """Copies the gradients of a context."""
    found = [each for each in propagation.gradients(ctx.engine, fields.context_id(request)) if each.ref is not None]
    reply.parameters.extend(each.ref.to_message() for each in found if each.ref is not None)
    ctx.write(reply.gradients, [each.tensor for each in found])
    reply.others.extend(propagation.others(ctx.engine, fields.context_id(request)))


def norm(ctx: RequestContext, request: pb.NormRequest, reply: pb.NormReply) -> None:
    """Sums the powers of gradients, for clipping over several owners."""
    refs = fields.refs(request.parameters)
    reply.power_sum = propagation.power_sum(ctx.engine, fields.context_id(request), refs, request.norm_type)
    if not refs:
        reply.others.extend(propagation.others(ctx.engine, fields.context_id(request)))


def scale(ctx: RequestContext, request: pb.ScaleRequest, reply: pb.ScaleReply) -> None:
    """Multiplies gradients of a context."""
    propagation.scale(ctx.engine, fields.context_id(request), fields.refs(request.parameters), request.factor)


def unscale(ctx: RequestContext, request: pb.UnscaleRequest, reply: pb.UnscaleReply) -> None:
    """Divides gradients of a context by the scale of a loss."""
    named = fields.context_id(request)
    optimizer = optimizer_of(ctx.find(request.optimizer))
    context = ctx.engine.contexts.get(named)
    if context is not None:
        parameters = [each.parameter for each in optimizer.covered]
        reply.present, reply.non_finite = context.unscale(parameters, request.factor)


def set_requires_grad(ctx: RequestContext, request: pb.SetRequiresGradRequest, reply: pb.SetRequiresGradReply) -> None:
    """Freezes parameters, or unfreezes them."""
    ctx.repeats("set_requires_grad", request)
    freezing.set_requires_grad(ctx.engine, fields.refs(request.targets), request.requires_grad)


def set_options(ctx: RequestContext, request: pb.SetOptionsRequest, reply: pb.SetOptionsReply) -> None:
    """Changes options of an optimizer's parameter groups."""
    hosted = ctx.find(request.optimizer)
    optimizer = optimizer_of(hosted)
    if request.HasField("gone_back"):
        spanning.gone_back(ctx, hosted, optimizer, request.gone_back)
    # All is read before anything changes.
    has_policy = bool(request.owners) or request.HasField("policy")
    policy = policies.from_plain(ctx.read(request.policy)) if has_policy else None
    rounds = optimizer.rounds
    if policy is not None and not request.owners and rounds is not None and rounds.following is not None:
        raise InvalidArgumentError(f"owner {rounds.owners[0]!r} decides the rounds of this optimizer")
    if request.HasField("options"):
        # A policy is noted by the rounds themselves.
        again = pb.SetOptionsRequest(optimizer=request.optimizer, options=request.options)
        if request.HasField("group"):
            again.group = request.group
        ctx.repeats("set_options", again)
        optimizer.set_options(
            request.group if request.HasField("group") else None, fields.options(ctx, request.options)
        )
    if policy is None:
        return
    if request.owners:
        spanning.place(ctx.engine, optimizer, request.owners, policy)
    else:
        ctx.engine.memberships.change_policy(optimizer, policy)
    incidents.policy(ctx, hosted, policy)
    offers.when_handled(ctx, optimizer, partial(spanning.tell, ctx, optimizer, reply.decisions))


def reported(ctx: RequestContext, request: pb.ReportedRequest, reply: pb.ReportedReply) -> None:
    """Reads the values that were reported with the gradients of an optimizer."""
    found = optimizer_of(ctx.find(request.optimizer)).reported.read(request.reset)
    ctx.write(reply.values, found.values)
    reply.names.extend(found.counts)
    reply.counts.extend(found.counts.values())
    reply.gradients = found.gradients


def leave(ctx: RequestContext, request: pb.LeaveRequest, reply: pb.LeaveReply) -> None:
    """Rounds of an optimizer do not wait for the trainer any more."""
    optimizer = optimizer_of(ctx.find(request.optimizer))
    if ctx.effects is not None and optimizer.aggregator is None:
        ctx.effects.leaves(optimizer, ctx.trainer)
    ctx.engine.memberships.remove(ctx.trainer, optimizer)
    offers.when_handled(ctx, optimizer, partial(spanning.tell, ctx, optimizer, reply.decisions))


def state(ctx: RequestContext, request: pb.StateRequest, reply: pb.StateReply) -> None:
    """Copies the state of a module, optimizer or scheduler."""
    target = ctx.engine.registry.find(Ref.from_message(request.target))
    # Only modules have tied tensors: nobody may get one tensor for several that an optimizer has.
    ctx.write(reply.state, state_dicts.state_of(ctx.engine, target), once=target.is_module)


def load_state(ctx: RequestContext, request: pb.LoadStateRequest, reply: pb.LoadStateReply) -> None:
    """Replaces the state of a module, optimizer or scheduler."""
    ctx.repeats("load_state", request)
    missing, unexpected = state_dicts.load_state_dict(
        ctx.engine, Ref.from_message(request.target), ctx.read(request.state, once=True), request.strict
    )
    reply.missing_keys.extend(missing)
    reply.unexpected_keys.extend(unexpected)
    incidents.loaded(ctx, ctx.find(request.target))


def _recording(ctx: RequestContext, request: Any) -> Recording | None:
    if not request.HasField("context"):
        return None
    place = tuple(request.place) or (request.call,)
    return Recording(fields.context_id(request), CallKey(ctx.trainer, request.call), place)


def make_instance(ctx: RequestContext, request: pb.CallRequest, object_id: str = "") -> tuple[HostedObject, bool]:
    """The instance that a call of a class makes, which stays on the owner."""
    _, args, kwargs = ctx.read_arguments(request)
    made = creation.create(ctx.engine, request.function, args, kwargs, object_id=object_id, account=ctx.account)
    return with_spec(ctx, "call", request, made)
