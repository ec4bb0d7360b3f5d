"""A snapshot of an owner for `ps-service status`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from ps_service.tables.stand_in import AllRows, RowsOfTable
from ps_service.training.optimizers import HostedOptimizer

if TYPE_CHECKING:
    import torch

    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_service.metrics.counters import OperationCount


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
        policy: When gradients count; empty if every step is applied at once.
        members: Number of trainers that use it.
        waiting_for: The trainers that a round waits for now.
    """

    name: str
    class_name: str
    version: int
    parameters: int
    policy: str = ""
    members: int = 0
    waiting_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableReport:
    """One owner's rows of a table.

    Attributes:
        name: Its name.
        rows: Number of rows.
        bytes: Bytes in use by rows, by what the optimizer keeps for them, and by the map of ids.
        dim: Numbers in a row.
        updates: Number of updates since the start.
    """

    name: str
    rows: int
    bytes: int
    dim: int
    updates: int


@dataclass(frozen=True, slots=True)
class Report:
    """The state of an owner at one moment."""

    objects: list[ObjectReport]
    optimizers: list[OptimizerReport]
    tables: list[TableReport]
    parameters: int
    bytes: int
    sessions: int
    connected_sessions: int
    contexts: int
    kept_answers: int
    operations: dict[str, OperationCount]
    calls_per_second: float


def report(engine: Engine) -> Report:
    """A snapshot of an owner. Tensors that several objects share are counted once in the totals."""
    objects, optimizers, tables = [], [], []
    tensors = {}
    parameters = {}
    for each in engine.registry.objects():
        if isinstance(each.value, HostedOptimizer):
            optimizers.append(_optimizer(each, each.value))
            continue
        if isinstance(each.value, RowsOfTable):
            rows = each.value
            elements, nbytes = rows.size * rows.dim, rows.nbytes
            parameters[id(rows)], tensors[id(rows)] = elements, nbytes
            tables.append(TableReport(each.name, rows.size, nbytes, rows.dim, rows.updates))
            objects.append(ObjectReport(each.name, each.class_name, elements, nbytes, each.references))
            continue
        buffers = list(each.value.buffers()) if isinstance(each.value, nn.Module) else []
        own = list(each.parameters.values())
        parameters.update({id(tensor): tensor.numel() for tensor in own})
        sizes = {id(tensor): tensor.numel() * tensor.element_size() for tensor in (*own, *buffers)}
        tensors.update(sizes)
        elements = sum(tensor.numel() for tensor in own)
        objects.append(ObjectReport(each.name, each.class_name, elements, sum(sizes.values()), each.references))
    return Report(
        objects=objects,
        optimizers=optimizers,
        tables=tables,
        parameters=sum(parameters.values()),
        bytes=sum(tensors.values()),
        sessions=len(engine.sessions),
        connected_sessions=engine.sessions.connected,
        contexts=len(engine.contexts),
        kept_answers=len(engine.reply_cache),
        operations=engine.counters.operations(),
        calls_per_second=engine.counters.calls_per_second(),
    )


def _optimizer(hosted: HostedObject, optimizer: HostedOptimizer) -> OptimizerReport:
    aggregator = optimizer.aggregator
    return OptimizerReport(
        name=hosted.name,
        class_name=hosted.class_name,
        version=optimizer.version,
        parameters=sum(_elements(each.parameter) for each in optimizer.covered),
        policy="" if aggregator.is_plain else str(aggregator.policy),
        members=len(aggregator.members),
        waiting_for=tuple(aggregator.describe(each) for each in aggregator.waiting_for()),
    )


def _elements(parameter: torch.Tensor) -> int:
    if isinstance(parameter, AllRows):
        return parameter.table.size * parameter.table.dim
    return parameter.numel()
