"""Handlers: one small function per operation, the same for streams and unary methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, TypeVar

import psutil

from ps_service.engine import calling, hosting, optimization, passes, report
from ps_service.engine.calling import Recording
from ps_service.engine.hosting import fingerprint
from ps_service.rpc.exchange import Exchange
from ps_service.state.optimizers import NonFinite, Reads
from ps_service.state.rrefs import RRef
from ps_wire.errors import InvalidArgumentError
from ps_wire.marks import name_of
from ps_wire.refs import ContextId, Ref
from ps_wire.v1 import operations_pb2 as pb

T = TypeVar("T")

_READS: dict[int, Reads] = {pb.READS_CONSISTENT: Reads.CONSISTENT, pb.READS_INCONSISTENT: Reads.INCONSISTENT}
_NON_FINITE: dict[int, NonFinite] = {pb.NON_FINITE_APPLY: NonFinite.APPLY, pb.NON_FINITE_REFUSE: NonFinite.REFUSE}
_STARTED: Final = time.monotonic()


def create(exchange: Exchange, request: pb.CreateRequest, reply: pb.CreateReply) -> None:
    """Makes an object of an allowed class, or finds the one of that name."""
    cls = exchange.engine.allowlist.hosted(request.class_name)
    _, args, kwargs = exchange.read_arguments(request.args, request.kwargs, recorded=False)
    hosted, reply.created = hosting.create(
        exchange.engine,
        request.class_name,
        args,
        kwargs,
        name=request.name,
        seed=request.seed if request.HasField("seed") else None,
        fingerprint=_fingerprint(exchange, name_of(cls), request),
    )
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
    """Runs a method, recorded if a context asks for it."""
    recording = Recording(_context(exchange, request), request.call) if request.HasField("context") else None
    target = exchange.engine.registry.find(Ref.from_message(request.target))
    arguments, args, kwargs = exchange.read_arguments(request.args, request.kwargs, recording is not None)
    result = calling.call(exchange.engine, target, request.method, arguments, args, kwargs, request.training, recording)
    exchange.write(reply.result, RRef(result) if request.keep else result)


def fetch(exchange: Exchange, request: pb.FetchRequest, reply: pb.FetchReply) -> None:
    """Copies what a handle refers to."""
    exchange.write(reply.value, calling.fetch(exchange.engine, Ref.from_message(request.target)))


def backward(exchange: Exchange, request: pb.BackwardRequest, reply: pb.BackwardReply) -> None:
    """Propagates gradients through a recorded call."""
    gradients = exchange.read(request.gradients)
    if not isinstance(gradients, list):
        raise InvalidArgumentError("the gradients of a backward are a list")
    of_inputs = passes.backward(
        exchange.engine, _context(exchange, request), request.call, request.outputs, gradients, request.retain_graph
    )
    exchange.write(reply.gradients, of_inputs)


def gradients(exchange: Exchange, request: pb.GradientsRequest, reply: pb.GradientsReply) -> None:
    """Copies the gradients of a context."""
    found = passes.gradients(exchange.engine, _context(exchange, request))
    reply.parameters.extend(each.ref.to_message() for each in found)
    exchange.write(reply.gradients, [each.tensor for each in found])


def norm(exchange: Exchange, request: pb.NormRequest, reply: pb.NormReply) -> None:
    """Sums the powers of gradients, for clipping over several owners."""
    refs = _refs(request.parameters)
    reply.power_sum = passes.power_sum(exchange.engine, _context(exchange, request), refs, request.norm_type)


def scale(exchange: Exchange, request: pb.ScaleRequest, reply: pb.ScaleReply) -> None:
    """Multiplies gradients of a context."""
    passes.scale(exchange.engine, _context(exchange, request), _refs(request.parameters), request.factor)


def end_context(exchange: Exchange, request: pb.EndContextRequest, reply: pb.EndContextReply) -> None:
    """Frees a pass."""
    exchange.engine.contexts.end(_context(exchange, request))


def optimizer(exchange: Exchange, request: pb.OptimizerRequest, reply: pb.CreateReply) -> None:
    """Makes an optimizer, or finds the one of that name."""
    cls = exchange.engine.allowlist.optimizer(request.class_name)
    groups = [(_refs(group.parameters), _options(exchange, group.options)) for group in request.groups]
    hosted, reply.created = optimization.create_optimizer(
        exchange.engine,
        request.class_name,
        groups,
        _options(exchange, request.options),
        name=request.name,
        reads=_known(_READS, request.reads, "reads"),
        non_finite=_known(_NON_FINITE, request.non_finite, "non_finite"),
        fingerprint=_fingerprint(exchange, name_of(cls), request),
    )
    exchange.describe(reply.object, hosted)


def scheduler(exchange: Exchange, request: pb.SchedulerRequest, reply: pb.CreateReply) -> None:
    """Makes a learning-rate scheduler, or finds the one of that name."""
    cls = exchange.engine.allowlist.scheduler(request.class_name)
    _, args, kwargs = exchange.read_arguments(request.args, request.kwargs, recorded=False)
    hosted, reply.created = optimization.create_scheduler(
        exchange.engine,
        request.class_name,
        Ref.from_message(request.optimizer),
        args,
        kwargs,
        name=request.name,
        fingerprint=_fingerprint(exchange, name_of(cls), request),
    )
    exchange.describe(reply.object, hosted)


def step(exchange: Exchange, request: pb.StepRequest, reply: pb.StepReply) -> None:
    """Applies the gradients of a context."""
    reply.version = optimization.step(exchange.engine, Ref.from_message(request.optimizer), _context(exchange, request))


def set_options(exchange: Exchange, request: pb.SetOptionsRequest, reply: pb.SetOptionsReply) -> None:
    """Changes options of an optimizer's parameter groups."""
    group = request.group if request.HasField("group") else None
    options = _options(exchange, request.options)
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


def status(exchange: Exchange, request: pb.StatusRequest, reply: pb.StatusReply) -> None:
    """Tells what the owner hosts and does."""
    now = report.report(exchange.engine)
    reply.owner = exchange.engine.name
    reply.version = version("torch-parameter-server")
    reply.uptime_seconds = time.monotonic() - _STARTED
    reply.serving = not exchange.engine.draining
    reply.resident_bytes = psutil.Process().memory_info().rss
    for name in ("parameters", "bytes", "sessions", "connected_sessions", "contexts", "kept_answers"):
        setattr(reply, name, getattr(now, name))
    reply.calls_per_second = now.calls_per_second
    reply.lanes, reply.shared_bytes = exchange.engine.lanes()
    reply.requests_in_flight = exchange.engine.counters.running
    for each in now.objects:
        reply.objects.add(
            name=each.name,
            class_name=each.class_name,
            parameters=each.parameters,
            bytes=each.bytes,
            references=each.references,
        )
    for one in now.optimizers:
        reply.optimizers.add(name=one.name, class_name=one.class_name, version=one.version, parameters=one.parameters)
    for name, count in sorted(now.operations.items()):
        reply.operations.add(name=name, calls=count.calls, errors=count.errors, seconds=count.seconds)


@dataclass(frozen=True, slots=True)
class Operation:
    """How one operation is run.

    Attributes:
        handle: Reads the request and fills in the reply.
        mutates: Whether running it twice would matter; then its answer is kept until confirmed.
        quick: Whether it may run on the event loop.
        hosted: Whether it runs code that the owner hosts; what that raises is told to the caller in full.
        awaited: Whether trainers wait for its answer.
    """

    handle: Callable[[Exchange, Any, Any], None]
    mutates: bool = True
    quick: bool = False
    hosted: bool = False
    awaited: bool = True


OPERATIONS: Final[dict[str, Operation]] = {
    "create": Operation(create, hosted=True),
    "attach": Operation(attach, quick=True),
    "release": Operation(release, quick=True, awaited=False),
    "delete": Operation(delete, quick=True),
    "call": Operation(call, hosted=True),
    "fetch": Operation(fetch, mutates=False),
    "backward": Operation(backward, hosted=True),
    "gradients": Operation(gradients, mutates=False),
    "norm": Operation(norm, mutates=False),
    "scale": Operation(scale),
    "end_context": Operation(end_context, quick=True, awaited=False),
    "optimizer": Operation(optimizer, hosted=True),
    "scheduler": Operation(scheduler, hosted=True),
    "step": Operation(step, hosted=True),
    "set_options": Operation(set_options),
    "state": Operation(state, mutates=False),
    "load_state": Operation(load_state, hosted=True),
    "status": Operation(status, mutates=False),
}
"""Every operation, by its name in `Request` and `Reply`."""


def _context(exchange: Exchange, request: Any) -> ContextId:
    id = ContextId.from_message(request.context)
    if id.trainer != exchange.trainer or not id.number:
        raise InvalidArgumentError(
            "a context is named by the 16 bytes of the trainer that asks, and a number from 1 on"
        )
    return id


def _known(table: Mapping[int, T], number: int, what: str) -> T:
    try:
        return table[number]
    except KeyError:
        raise InvalidArgumentError(f"{what} {number} is not one that this owner knows; is it older than you?") from None


def _refs(handles: Any) -> list[Ref]:
    return [Ref.from_message(handle) for handle in handles]


def _options(exchange: Exchange, message: Any) -> dict[str, Any]:
    options = exchange.read(message) if message.WhichOneof("kind") else {}
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise InvalidArgumentError("options are a dict with text keys")
    return options


def _fingerprint(exchange: Exchange, class_name: str, request: Any) -> bytes:
    same = type(request)()
    same.CopyFrom(request)
    # Several names may lead to one class.
    same.class_name = class_name
    payload = b"" if exchange.payload is None else exchange.payload.tobytes()
    return fingerprint(same.SerializeToString(deterministic=True), payload)
