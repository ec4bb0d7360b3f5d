"""The layouts of optimizers over any number of owners, by which trainers find all parts of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.tables.optimizer import RowOptimizer
from ps_service.training.optimizers import HostedOptimizer, optimizer_of
from ps_service.training.schedulers import HostedScheduler
from ps_service.training.spread import Digests, Spread
from ps_wire.errors import InvalidArgumentError, UnknownNameError
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ps_service.hosting.objects import HostedObject
    from ps_service.requests.context import RequestContext


def spread_of(request: pb.OptimizerRequest) -> Spread:
    """What an optimizer that is made is a part of."""
    groups = _read(request.layout.groups)
    return Spread(groups, bool(request.name), len(groups) > 0 or len(request.owners) < 2)


def describe(reply: pb.AttachReply, hosted: HostedObject) -> None:
    """Writes the layout of an optimizer, or of that of a scheduler; nothing for other objects."""
    value = hosted.value
    if isinstance(value, HostedScheduler):
        optimizer, is_named = value.hosted, value.is_named
        reply.layout.scheduler = hosted.class_name
    elif isinstance(value, HostedOptimizer):
        optimizer, is_named = value, value.spread.is_named
    else:
        return
    layout = reply.layout
    _write(layout.groups, optimizer.spread.groups)
    _write(layout.own, [[each.ref.digest() for each in members] for members in optimizer.groups()])
    layout.is_named = is_named
    layout.non_finite = pb.NON_FINITE_REFUSE if optimizer.refuses_non_finite else pb.NON_FINITE_APPLY


def find(ctx: RequestContext, part: pb.OptimizerLayout) -> HostedObject:
    """The optimizer, or the scheduler of that class, that was made without a name as a part of another one's. Raises
    `UnknownNameError` if it is not here."""
    groups, registry = _read(part.groups), ctx.engine.registry
    for hosted in registry.objects():
        value = hosted.value
        if isinstance(value, HostedScheduler) and part.scheduler == hosted.class_name:
            is_it = not value.is_named and value.hosted.spread.groups == groups
        else:
            is_it = isinstance(value, HostedOptimizer) and not part.scheduler and not value.spread.is_named
            is_it = is_it and value.spread.groups == groups
        if groups and is_it:
            return registry.find(hosted.ref)
    raise UnknownNameError(f"owner {ctx.engine.name!r} has no part of this optimizer")


def checked(hosted: HostedObject) -> HostedOptimizer:
    """An optimizer that a trainer uses as it is. Raises `InvalidArgumentError` if it cannot, because it is that of a
    table, or there is more of it than is known here."""
    optimizer = optimizer_of(hosted)
    if isinstance(optimizer.optimizer, RowOptimizer):
        raise InvalidArgumentError(
            f"{hosted.name!r} is the optimizer of a table: `table.optimizer` of the handle of that, ps.table(…), is it"
        )
    if not optimizer.spread.is_known:
        raise InvalidArgumentError(
            f"{hosted.name!r} is over several owners, and was made by an earlier version, which does not tell all of "
            "its parameters: give ps.optimizer() the class, the parameters and the options that it was made with"
        )
    return optimizer


def _read(groups: Iterable[pb.ParameterDigests]) -> Digests:
    return tuple(tuple(each.parameters) for each in groups)


def _write(message: object, groups: Iterable[Iterable[int]]) -> None:
    message.extend(pb.ParameterDigests(parameters=each) for each in groups)  # type: ignore[attr-defined]
