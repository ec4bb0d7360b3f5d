"""Counts of an owner's objects by kind and of their parameters, updated as objects come and go."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ps_service.tables.stand_in import RowsOfTable
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.schedulers import HostedScheduler

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject
    from ps_service.tables.budget import TableBudget

KINDS: Final = ("module", "optimizer", "scheduler", "table", "tensor", "other")
"""The kinds of hosted objects."""


class Census:
    """Counts objects as they come and go. The caller's lock guards it.

    Attributes:
        kinds: Number of objects of each kind.
        parameters: Number of elements of all parameters; shared parameters count once.
        parameter_bytes: Bytes of these elements.
        buffer_bytes: Bytes of the buffers that modules had when they were added; shared ones count once.
        optimizers, tables: The named optimizers, and the tables, by name.
    """

    def __init__(self, table_budget: TableBudget | None = None) -> None:
        self.table_budget: Final = table_budget
        self.kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.parameters = 0
        self.parameter_bytes = 0
        self.buffer_bytes = 0
        self.optimizers: dict[str, HostedOptimizer] = {}
        self.tables: dict[str, RowsOfTable] = {}
        # For each parameter, by identity: number of objects that have it, and elements and bytes as counted.
        self._shared: dict[int, tuple[int, int, int]] = {}
        # The same of each buffer, without elements; and by object those that were counted for it, because modules may
        # replace their buffers.
        self._buffers: dict[int, tuple[int, int]] = {}
        self._buffers_of: dict[int, list[int]] = {}

    def add(self, hosted: HostedObject) -> None:
        """Counts a new object."""
        self.kinds[kind_of(hosted.value)] += 1
        if hosted.name and isinstance(hosted.value, HostedOptimizer):
            self.optimizers[hosted.name] = hosted.value
        if isinstance(hosted.value, RowsOfTable):
            self.tables[hosted.name] = hosted.value
            if self.table_budget is not None:
                hosted.value.shard.count_in(self.table_budget, str(hosted.value))
            return  # its rows come and go
        for parameter in hosted.parameters.values():
            objects, elements, nbytes = self._shared.get(id(parameter), (0, 0, 0))
            if not objects:
                elements, nbytes = parameter.numel(), parameter.numel() * parameter.element_size()
                self.parameters += elements
                self.parameter_bytes += nbytes
            self._shared[id(parameter)] = (objects + 1, elements, nbytes)
        if isinstance(hosted.value, nn.Module):
            self._add_buffers(hosted)

    def remove(self, hosted: HostedObject) -> None:
        """Removes an object that is gone."""
        self.kinds[kind_of(hosted.value)] -= 1
        if hosted.name and self.optimizers.get(hosted.name) is hosted.value:
            del self.optimizers[hosted.name]
        if isinstance(hosted.value, RowsOfTable):
            if self.tables.get(hosted.name) is hosted.value:
                del self.tables[hosted.name]
            return
        for parameter in hosted.parameters.values():
            objects, elements, nbytes = self._shared.pop(id(parameter))
            if objects > 1:
                self._shared[id(parameter)] = (objects - 1, elements, nbytes)
            else:
                self.parameters -= elements
                self.parameter_bytes -= nbytes
        for key in self._buffers_of.pop(id(hosted), ()):
            modules, nbytes = self._buffers.pop(key)
            if modules > 1:
                self._buffers[key] = (modules - 1, nbytes)
            else:
                self.buffer_bytes -= nbytes

    def _add_buffers(self, hosted: HostedObject) -> None:
        buffers = list(hosted.value.buffers())
        if buffers:
            self._buffers_of[id(hosted)] = [id(buffer) for buffer in buffers]
        for buffer in buffers:
            modules, nbytes = self._buffers.get(id(buffer), (0, 0))
            if not modules:
                nbytes = buffer.numel() * buffer.element_size()
                self.buffer_bytes += nbytes
            self._buffers[id(buffer)] = (modules + 1, nbytes)


def kind_of(value: Any) -> str:
    """The kind of an object, one of `KINDS`."""
    if isinstance(value, nn.Module):
        return "module"
    if isinstance(value, HostedOptimizer):
        return "optimizer"
    if isinstance(value, HostedScheduler):
        return "scheduler"
    if isinstance(value, RowsOfTable):
        return "table"
    return "tensor" if isinstance(value, torch.Tensor) else "other"
