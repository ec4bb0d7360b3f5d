"""What an owner hosts, as its status lists it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ps_service.tables.stand_in import AllRows, RowsOfTable
from ps_service.training.optimizers import HostedOptimizer

if TYPE_CHECKING:
    import torch

    from ps_service.hosting.objects import HostedObject
    from ps_service.hosting.registry import Registry
    from ps_service.measures.pace import Staleness
    from ps_service.metrics.census import Census
    from ps_service.tables.statistics import Statistics

_MOST_NAMED: Final = 16
"""Most parameter groups, and most trainers that a round waits for, that are listed of one optimizer."""


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """One hosted object; `parameters` counts elements, `bytes` the bytes of parameters and buffers."""

    name: str
    class_name: str
    parameters: int
    bytes: int
    references: int


@dataclass(frozen=True, slots=True)
class OptimizerReport:
    """One optimizer.

    Attributes:
        name: Its name.
        class_name: Its class.
        version: Number of its steps.
        parameters: Number of elements of its parameters.
        lr: The learning rate of each parameter group.
        steps_per_second: Its steps per second lately.
        staleness: How stale its latest steps were; None if that is not known.
        policy: When gradients count; empty if every step is applied at once.
        members: Number of trainers that use it.
        waiting_for: The trainers that a round waits for now.
        owners: Those that its rounds are over, if there are several.
    """

    name: str
    class_name: str
    version: int
    parameters: int
    lr: tuple[float, ...] = ()
    steps_per_second: float = 0.0
    staleness: Staleness | None = None
    policy: str = ""
    members: int = 0
    waiting_for: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableReport:
    """One owner's rows of a table.

    Attributes:
        name: Its name.
        rows: Number of rows.
        bytes: Bytes in use by rows, by what the optimizer keeps for them, and by the map of ids.
        dim: Numbers in a row.
        updates: Number of updates since the start.
        counted: What else was counted since then.
    """

    name: str
    rows: int
    bytes: int
    dim: int
    updates: int
    counted: Statistics


@dataclass(frozen=True, slots=True)
class Report:
    """What an owner hosts at one moment.

    Attributes:
        objects: All but optimizers; those with names first.
        optimizers: Those with names first.
        tables: The tables.
        hosted: Number of all objects.
        all_optimizers: Number of all optimizers.
        all_tables: Number of all tables.
        parameters: Elements of all parameters, and numbers in all rows of tables; shared parameters count once.
        bytes: Bytes of parameters, buffers and tables.
        table_bytes: Bytes of tables.
        steps_per_second: Of all optimizers together.
    """

    objects: list[ObjectReport]
    optimizers: list[OptimizerReport]
    tables: list[TableReport]
    hosted: int
    all_optimizers: int
    all_tables: int
    parameters: int
    bytes: int
    table_bytes: int
    steps_per_second: float


def report(registry: Registry, census: Census, most: int = 1000, objects_too: bool = True) -> Report:
    """What an owner hosts.

    Args:
        registry: Its objects.
        census: Counts them.
        most: Most entries of each list. The totals count all.
        objects_too: Whether to list objects that are no optimizers.
    """
    objects: list[HostedObject] = []
    optimizers: list[HostedObject] = []
    hosted = registry.objects()
    for each in hosted:
        (optimizers if isinstance(each.value, HostedOptimizer) else objects).append(each)
    tables = [TableReport(n, t.size, t.nbytes, t.dim, t.updates, t.statistics) for n, t in list(census.tables.items())]
    table_bytes = sum(each.bytes for each in tables)
    return Report(
        objects=[_object(each) for each in _first(objects, most if objects_too else 0)],
        optimizers=[_optimizer(each, each.value) for each in _first(optimizers, most)],
        tables=tables[:most],
        hosted=len(hosted),
        all_optimizers=len(optimizers),
        all_tables=len(tables),
        parameters=census.parameters + sum(each.rows * each.dim for each in tables),
        bytes=census.parameter_bytes + census.buffer_bytes + table_bytes,
        table_bytes=table_bytes,
        steps_per_second=sum(each.value.pace.per_second() for each in optimizers),
    )


def _first(objects: list[HostedObject], most: int) -> list[HostedObject]:
    """At most so many objects: those with names first."""
    if len(objects) <= most:
        return objects
    named = [each for each in objects if each.name][:most]
    return named + [each for each in objects if not each.name][: most - len(named)] if len(named) < most else named


def _object(hosted: HostedObject) -> ObjectReport:
    if isinstance(hosted.value, RowsOfTable):
        elements, nbytes = hosted.value.size * hosted.value.dim, hosted.value.nbytes
    else:
        elements, nbytes = hosted.size
    return ObjectReport(hosted.name, hosted.class_name, elements, nbytes, hosted.references)


def _optimizer(hosted: HostedObject, optimizer: HostedOptimizer) -> OptimizerReport:
    rounds = optimizer.rounds
    rates = [group.get("lr") for group in optimizer.optimizer.param_groups[:_MOST_NAMED]]
    return OptimizerReport(
        name=hosted.name,
        class_name=getattr(optimizer.optimizer, "options_class", hosted.class_name),
        version=optimizer.version,
        parameters=sum(_elements(each.parameter) for each in optimizer.covered),
        lr=tuple(float(rate) for rate in rates if rate is not None),
        steps_per_second=optimizer.pace.per_second(),
        staleness=optimizer.pace.staleness(),
        policy="" if rounds is None else str(rounds.policy),
        members=len(optimizer.trainers),
        waiting_for=() if rounds is None else tuple(rounds.missing(_MOST_NAMED)),
        owners=() if rounds is None else rounds.owners,
    )


def _elements(parameter: torch.Tensor) -> int:
    if isinstance(parameter, AllRows):
        return parameter.table.size * parameter.table.dim
    return parameter.numel()
