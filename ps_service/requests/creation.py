"""Makes objects from requests, also again when an owner has restarted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from ps_service.hosting import lifecycle
from ps_service.hosting.lifecycle import fingerprint
from ps_service.hosting.objects import CreationSpec, HostedObject
from ps_service.requests.canonical import canonical
from ps_service.training import steps
from ps_service.training.optimizers import NonFinite, Reads
from ps_wire.codec.names import name_of
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import Ref
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.values_pb2 import Handle, Value

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext

T = TypeVar("T")

_READS: dict[int, Reads] = {pb.READS_CONSISTENT: Reads.CONSISTENT, pb.READS_INCONSISTENT: Reads.INCONSISTENT}
_NON_FINITE: dict[int, NonFinite] = {pb.NON_FINITE_APPLY: NonFinite.APPLY, pb.NON_FINITE_REFUSE: NonFinite.REFUSE}


def create(ctx: RequestContext, request: pb.CreateRequest, object_id: str = "") -> tuple[HostedObject, bool]:
    """An object of an allowed class, made now or found under its name."""
    cls = ctx.engine.allowlist.hosted(request.class_name)
    _, args, kwargs = ctx.read_arguments(request.args, request.kwargs)
    made = lifecycle.create(
        ctx.engine,
        request.class_name,
        args,
        kwargs,
        name=request.name,
        seed=_seed(request),
        fingerprint=_fingerprint(ctx, name_of(cls), request),
        object_id=object_id,
    )
    return _noted(ctx, "create", request, made)


def instance(ctx: RequestContext, request: pb.CallRequest, object_id: str = "") -> tuple[HostedObject, bool]:
    """What a call of a class makes, when its result is to stay."""
    _, args, kwargs = ctx.read_arguments(request.args, request.kwargs)
    made = lifecycle.create(ctx.engine, request.function, args, kwargs, object_id=object_id)
    return _noted(ctx, "call", request, made)


def optimizer(ctx: RequestContext, request: pb.OptimizerRequest, object_id: str = "") -> tuple[HostedObject, bool]:
    """An optimizer, made now or found under its name."""
    cls = ctx.engine.allowlist.optimizer(request.class_name)
    groups = [(refs(group.parameters), options(ctx, group.options)) for group in request.groups]
    made = steps.create_optimizer(
        ctx.engine,
        request.class_name,
        groups,
        options(ctx, request.options),
        name=request.name,
        reads=_known(_READS, request.reads, "reads"),
        non_finite=_known(_NON_FINITE, request.non_finite, "non_finite"),
        fingerprint=_fingerprint(ctx, name_of(cls), request),
        object_id=object_id,
    )
    return _noted(ctx, "optimizer", request, made)


def scheduler(ctx: RequestContext, request: pb.SchedulerRequest, object_id: str = "") -> tuple[HostedObject, bool]:
    """A learning-rate scheduler, made now or found under its name."""
    cls = ctx.engine.allowlist.scheduler(request.class_name)
    _, args, kwargs = ctx.read_arguments(request.args, request.kwargs)
    made = steps.create_scheduler(
        ctx.engine,
        request.class_name,
        Ref.from_message(request.optimizer),
        args,
        kwargs,
        name=request.name,
        fingerprint=_fingerprint(ctx, name_of(cls), request),
        object_id=object_id,
    )
    return _noted(ctx, "scheduler", request, made)


def refs(handles: Any) -> list[Ref]:
    """The references that stand in a request."""
    return [Ref.from_message(handle) for handle in handles]


def options(ctx: RequestContext, message: Any) -> dict[str, Any]:
    """The options that stand in a request.

    Raises:
        InvalidArgumentError: They are something else.
    """
    found = ctx.read(message) if message.WhichOneof("kind") else {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidArgumentError("options are a dict with text keys")
    return found


def _noted(
    ctx: RequestContext, operation: str, request: Message, made: tuple[HostedObject, bool]
) -> tuple[HostedObject, bool]:
    hosted, is_new = made
    if is_new and ctx.engine.durable:
        # The buffer that the request came in will be used for others.
        payload = None if ctx.payload is None else ctx.payload.copy()
        request = type(request).FromString(request.SerializeToString())
        named = {Ref.from_message(handle)._replace(parameter="") for handle in _handles(request)}
        dependencies = [ctx.engine.registry.find(ref) for ref in named if ref.owner == ctx.engine.name]
        hosted.creation_spec = CreationSpec(
            operation, request, payload, tuple(dependencies), len(dependencies) == len(named)
        )
    return made


def _handles(message: Message) -> Iterator[Handle]:
    """Every handle that stands in a message."""
    if isinstance(message, Handle):
        yield message
        return
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from _handles(value)
        elif field.message_type is not None:
            for item in value:
                yield from _handles(item)


def _known(table: Mapping[int, T], number: int, what: str) -> T:
    try:
        return table[number]
    except KeyError:
        raise InvalidArgumentError(f"{what} {number} is not one that this owner knows; is it older than you?") from None


def _fingerprint(ctx: RequestContext, class_name: str, request: Any) -> bytes:
    same = type(request)()
    same.CopyFrom(request)
    # Several names may lead to one class.
    same.class_name = class_name
    if isinstance(same, pb.CreateRequest):
        same.ClearField("default_seed")
    for value in _values(same):
        value.CopyFrom(canonical(value))
    payload = b"" if ctx.payload is None else ctx.payload.tobytes()
    return fingerprint(same.SerializeToString(deterministic=True), payload)


def _seed(request: pb.CreateRequest) -> int | None:
    if request.HasField("seed"):
        return request.seed
    return request.default_seed if request.HasField("default_seed") else None


def _values(request: Any) -> Iterator[Value]:
    """The values that stand in a request, wherever they do."""
    for field, value in request.ListFields():
        if isinstance(value, Value):
            yield value
        elif field.name == "groups":
            yield from (group.options for group in value)
