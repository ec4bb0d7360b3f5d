"""Handlers: one small function per operation, the same for streams and unary methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ps_service.engine import calling, freezing, hosting, optimization, passes
from ps_service.engine.calling import Recording
from ps_service.engine.deferred import Deferred
from ps_service.rpc import administration, making, membership, reporting
from ps_service.rpc.exchange import Exchange
from ps_service.rpc.numerics import numerics_of
from ps_service.state.gradients import Turn
from ps_service.state.records import Over
from ps_service.state.rrefs import RRef
from ps_wire import marks
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import CallKey, ContextId, Ref
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.values_pb2 import Value


def create(exchange: Exchange, request: pb.CreateRequest, reply: pb.CreateReply) -> None:
    """Makes an object of an allowed class, or finds the one of that name; no thread waits while another makes it."""
    being_made = exchange.engine.registry.being_made(request.name)
    if being_made is not None and exchange.deferred is None:
        exchange.defer(Deferred(being_made, _same), lambda _: create(exchange, request, reply))
        return
    hosted, reply.created = making.create(exchange, request)
    exchange.describe(reply.object, hosted)


def attach(exchange: Exchange, request: pb.AttachRequest, reply: pb.AttachReply) -> None:
    """Finds what exists, by name or handle."""
    target = request.name if request.HasField("name") else Ref.from_message(request.handle)
    exchange.describe(reply.object, hosting.attach(exchange.engine, target))


def release(exchange: Exchange, request: pb.ReleaseRequest, reply: pb.ReleaseReply) -> None:
    """Takes handles back."""
    exchange.release(request.object_ids)


def delete(exchange: Exchange, request: pb.DeleteRequest, reply: pb.DeleteReply) -> None:
    """Removes a named object and what depends on it."""
    exchange.engine.registry.delete(request.name)


def call(exchange: Exchange, request: pb.CallRequest, reply: pb.CallReply) -> None:
    """Runs a method or function, recorded if a context asks for it."""
    exchange.recording = recording = _recording(exchange, request)

    def finish(result: Any) -> None:
        exchange.write(reply.result, result)

    with numerics_of(request):
        result = _called(exchange, request, recording)
    if isinstance(result, Deferred):
        exchange.defer(result, finish)
    else:
        finish(result)


def _called(exchange: Exchange, request: pb.CallRequest, recording: Recording | None) -> Any:
    """The result of a call, which may still be to come."""
    engine = exchange.engine
    if recording is not None:
        engine.held.check(recording.context.trainer)
    if request.keep:
        engine.held.check(exchange.trainer)
    if not request.function:
        target = engine.registry.find(Ref.from_message(request.target))
        arguments, args, kwargs = exchange.read_arguments(request.args, request.kwargs)
        return calling.call(
            engine, target, request.method, arguments, args, kwargs, request.training, recording, request.keep
        )
    if request.keep and engine.allowlist.is_hosted(request.function):
        made, _ = making.instance(exchange, request)
        return RRef.to(made)
    function = engine.allowlist.function(request.function)
    arguments, args, kwargs = exchange.read_arguments(request.args, request.kwargs)
    deferred = marks.is_deferred(function)
    return calling.call_function(
        engine, function, arguments, args, kwargs, request.training, recording, deferred, request.keep
    )


def fetch(exchange: Exchange, request: pb.FetchRequest, reply: pb.FetchReply) -> None:
    """Copies what a handle refers to."""
    exchange.recording = recording = _recording(exchange, request)
    arguments, _, _ = exchange.read_arguments(Value(), Value())
    target = Ref.from_message(request.target)
    exchange.write(reply.value, calling.fetch(exchange.engine, target, arguments, recording))


def backward(exchange: Exchange, request: pb.BackwardRequest, reply: pb.BackwardReply) -> None:
    """Propagates gradients through a recorded call."""
    gradients = exchange.read(request.gradients)
    if not isinstance(gradients, list):
        raise InvalidArgumentError("the gradients of a backward are a list")
    key = CallKey(exchange.trainer, request.call)
    with numerics_of(request):
        of_inputs = passes.backward(
            exchange.engine, _context(request), key, request.outputs, gradients, request.retain_graph, _turn(request)
        )
    exchange.write(reply.gradients, of_inputs)


def gradients(exchange: Exchange, request: pb.GradientsRequest, reply: pb.GradientsReply) -> None:
    """Copies the gradients of a context."""
    found = [each for each in passes.gradients(exchange.engine, _context(request)) if each.ref is not None]
    reply.parameters.extend(each.ref.to_message() for each in found if each.ref is not None)
    exchange.write(reply.gradients, [each.tensor for each in found])
    reply.others.extend(passes.others(exchange.engine, _context(request)))


def norm(exchange: Exchange, request: pb.NormRequest, reply: pb.NormReply) -> None:
    """Sums the powers of gradients, for clipping over several owners."""
    refs = making.refs(request.parameters)
    reply.power_sum = passes.power_sum(exchange.engine, _context(request), refs, request.norm_type)


def scale(exchange: Exchange, request: pb.ScaleRequest, reply: pb.ScaleReply) -> None:
    """Multiplies gradients of a context."""
    passes.scale(exchange.engine, _context(request), making.refs(request.parameters), request.factor)


def unscale(exchange: Exchange, request: pb.UnscaleRequest, reply: pb.UnscaleReply) -> None:
    """Takes the scale of a loss out of gradients of a context."""
    found = optimization.unscale(
        exchange.engine, Ref.from_message(request.optimizer), _context(request), request.factor
    )
    reply.present, reply.non_finite = found


def set_requires_grad(exchange: Exchange, request: pb.SetRequiresGradRequest, reply: pb.SetRequiresGradReply) -> None:
    """Freezes parameters, or unfreezes them."""
    freezing.set_requires_grad(exchange.engine, making.refs(request.targets), request.requires_grad)


def end_context(exchange: Exchange, request: pb.EndContextRequest, reply: pb.EndContextReply) -> None:
    """Frees a pass."""
    exchange.engine.contexts.end(_context(request), Over(request.all_before, tuple(request.but)))


def optimizer(exchange: Exchange, request: pb.OptimizerRequest, reply: pb.CreateReply) -> None:
    """Makes an optimizer, or finds the one of that name."""
    hosted, reply.created = making.optimizer(exchange, request)
    exchange.describe(reply.object, hosted)


def scheduler(exchange: Exchange, request: pb.SchedulerRequest, reply: pb.CreateReply) -> None:
    """Makes a learning-rate scheduler, or finds the one of that name."""
    hosted, reply.created = making.scheduler(exchange, request)
    exchange.describe(reply.object, hosted)


def step(exchange: Exchange, request: pb.StepRequest, reply: pb.StepReply) -> None:
    """Applies the gradients of a context, or looks whether they may be applied."""
    act = optimization.check_step if request.check_only else optimization.step
    reply.version = act(exchange.engine, Ref.from_message(request.optimizer), _context(request))


def set_options(exchange: Exchange, request: pb.SetOptionsRequest, reply: pb.SetOptionsReply) -> None:
    """Changes options of an optimizer's parameter groups."""
    group = request.group if request.HasField("group") else None
    options = making.options(exchange, request.options)
    optimization.set_options(exchange.engine, Ref.from_message(request.optimizer), group, options)


def state(exchange: Exchange, request: pb.StateRequest, reply: pb.StateReply) -> None:
    """Copies the state of a module, optimizer or scheduler."""
    exchange.write(reply.state, optimization.state_dict(exchange.engine, Ref.from_message(request.target)))


def load_state(exchange: Exchange, request: pb.LoadStateRequest, reply: pb.LoadStateReply) -> None:
    """Replaces the state of a module, optimizer or scheduler."""
    missing, unexpected = optimization.load_state_dict(
        exchange.engine, Ref.from_message(request.target), exchange.read(request.state), request.strict
    )
    reply.missing_keys.extend(missing)
    reply.unexpected_keys.extend(unexpected)


@dataclass(frozen=True, slots=True)
class Operation:
    """How one operation is run.

    Attributes:
        handle: Reads the request and fills in the reply.
        mutates: Whether running it twice would matter; then its answer is kept until confirmed.
        quick: Whether it may run on the event loop.
        hosted: Whether it runs code that the owner hosts; what that raises is told to the caller in full.
        awaited: Whether trainers wait for its answer.
        apart: Whether it has a thread apart from those of trainers: administration is answered however busy those are.
        waits: Whether it may wait for other members of a group; an owner that ends does not wait for it.
        large: Whether its answer may be large.
    """

    handle: Callable[[Exchange, Any, Any], None]
    mutates: bool = True
    quick: bool = False
    hosted: bool = False
    awaited: bool = True
    waits: bool = False
    apart: bool = False
    large: bool = False


OPERATIONS: Final[dict[str, Operation]] = {
    "create": Operation(create, hosted=True),
    "attach": Operation(attach, quick=True),
    "release": Operation(release, quick=True, awaited=False),
    "delete": Operation(delete, quick=True),
    "call": Operation(call, hosted=True, large=True),
    "fetch": Operation(fetch, mutates=False, large=True),
    "backward": Operation(backward, hosted=True, large=True),
    "gradients": Operation(gradients, mutates=False, large=True),
    "norm": Operation(norm, mutates=False),
    "scale": Operation(scale),
    "unscale": Operation(unscale),
    "set_requires_grad": Operation(set_requires_grad),
    "end_context": Operation(end_context, quick=True, awaited=False),
    "optimizer": Operation(optimizer, hosted=True),
    "scheduler": Operation(scheduler, hosted=True),
    "step": Operation(step, hosted=True),
    "set_options": Operation(set_options),
    "state": Operation(state, mutates=False, large=True),
    "load_state": Operation(load_state, hosted=True),
    "status": Operation(reporting.status, mutates=False, apart=True),
    "register": Operation(membership.register),
    "lookup": Operation(membership.lookup, mutates=False, waits=True),
    "members": Operation(membership.members, mutates=False, waits=True),
    "meet": Operation(membership.meet, waits=True),
    "sessions": Operation(administration.sessions, mutates=False, quick=True),
    # It opens no session for who asks, and done twice it finds nothing to do.
    "evict": Operation(administration.evict, mutates=False, quick=True),
}
"""Every operation, by its name in `Request` and `Reply`."""


def _context(request: Any) -> ContextId:
    id = ContextId.from_message(request.context)
    if len(id.trainer) != 16 or not id.number:
        raise InvalidArgumentError("a context is named by the 16 bytes of its trainer, and a number from 1 on")
    return id


def _same(result: Any) -> Any:
    return result


def _recording(exchange: Exchange, request: Any) -> Recording | None:
    if not request.HasField("context"):
        return None
    place = tuple(request.place) or (request.call,)
    return Recording(_context(request), CallKey(exchange.trainer, request.call), place)


def _turn(request: pb.BackwardRequest) -> Turn | None:
    if not request.backward:
        return None
    after = request.after if request.HasField("after") else None
    return Turn(request.backward, tuple(request.place) or (request.call,), after)
