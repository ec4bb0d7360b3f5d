"""What an owner hosts, as its status describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ps_service.tables.stand_in import AllRows, RowsOfTable
from ps_service.tables.statistics import COUNTED
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    import torch

    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject

_MOST_NAMED: Final = 16
"""Most parameter groups, and most trainers that a round waits for, that are listed of one optimizer."""


def write(engine: Engine, reply: pb.StatusReply, most: int, objects_too: bool) -> int:
    """Describes objects, optimizers and tables. May be called in any thread.

    Args:
        engine: The owner.
        reply: Where.
        most: Most entries of each list. The totals count all.
        objects_too: Whether to list objects that are no optimizers.

    Returns:
        Bytes of all tables.
    """
    census = engine.census
    objects: list[HostedObject] = []
    optimizers: list[HostedObject] = []
    hosted = engine.registry.objects()
    for each in hosted:
        (optimizers if isinstance(each.value, HostedOptimizer) else objects).append(each)
    tables = [_table(name, table) for name, table in list(census.tables.items())]
    table_bytes = sum(each.bytes for each in tables)
    reply.objects.extend(map(_object, _first(objects, most if objects_too else 0)))
    reply.optimizers.extend(_optimizer(each, each.value) for each in _first(optimizers, most))
    reply.tables.extend(tables[:most])
    reply.objects_hosted, reply.optimizers_hosted, reply.tables_hosted = len(hosted), len(optimizers), len(tables)
    reply.parameters = census.parameters + sum(each.rows * each.dim for each in tables)
    reply.bytes = census.parameter_bytes + census.buffer_bytes + table_bytes
    reply.steps_per_second = sum(each.value.pace.per_second() for each in optimizers)
    return table_bytes


def _first(objects: list[HostedObject], most: int) -> list[HostedObject]:
    """At most so many objects: those with names first."""
    if len(objects) <= most:
        return objects
    named = [each for each in objects if each.name][:most]
    return named + [each for each in objects if not each.name][: most - len(named)] if len(named) < most else named


def _object(hosted: HostedObject) -> pb.ObjectStatus:
    if isinstance(hosted.value, RowsOfTable):
        elements, nbytes = hosted.value.size * hosted.value.dim, hosted.value.nbytes
    else:
        elements, nbytes = hosted.size
    return pb.ObjectStatus(
        name=hosted.name,
        class_name=hosted.class_name,
        parameters=elements,
        bytes=nbytes,
        references=hosted.references,
    )


def _optimizer(hosted: HostedObject, optimizer: HostedOptimizer) -> pb.OptimizerStatus:
    rounds, staleness = optimizer.rounds, optimizer.pace.staleness()
    rates = [group.get("lr") for group in optimizer.optimizer.param_groups[:_MOST_NAMED]]
    return pb.OptimizerStatus(
        name=hosted.name,
        class_name=getattr(optimizer.optimizer, "options_class", hosted.class_name),
        version=optimizer.version,
        parameters=sum(_elements(each.parameter) for each in optimizer.covered),
        lr=[float(rate) for rate in rates if rate is not None],
        steps_per_second=optimizer.pace.per_second(),
        staleness_p50=None if staleness is None else staleness.p50,
        staleness_p99=None if staleness is None else staleness.p99,
        policy="" if rounds is None else str(rounds.policy),
        members=len(optimizer.trainers),
        waiting_for=() if rounds is None else rounds.missing(_MOST_NAMED),
        owners=() if rounds is None else rounds.owners,
    )


def _table(name: str, table: RowsOfTable) -> pb.TableStatus:
    statistics = table.statistics
    counted = {each: getattr(statistics, each) for each in COUNTED}
    return pb.TableStatus(
        name=name, rows=table.size, bytes=table.nbytes, dim=table.dim, updates=table.updates, **counted
    )


def _elements(parameter: torch.Tensor) -> int:
    if isinstance(parameter, AllRows):
        return parameter.table.size * parameter.table.dim
    return parameter.numel()
