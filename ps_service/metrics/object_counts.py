"""Counts of an owner's objects by kind and of their parameters, updated as objects come and go."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ps_service.memory.held import size
from ps_service.quotas.table_budget import AccountBudget
from ps_service.tables.stand_in import RowsOfTable
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.schedulers import HostedScheduler

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject
    from ps_service.quotas.accounts import Account
    from ps_service.quotas.quotas import Quotas
    from ps_service.tables.budget import TableBudget

_KINDS: Final = (
    *((nn.Module, "module"), (HostedOptimizer, "optimizer"), (HostedScheduler, "scheduler")),
    *((RowsOfTable, "table"), (torch.Tensor, "tensor")),
)

KINDS: Final = (*(kind for _, kind in _KINDS), "other")
"""The kinds of hosted objects."""


class Tensors:
    """Counts tensors and their elements, those that several objects share once, until the last of these is gone."""

    def __init__(self) -> None:
        self.elements = 0
        self.nbytes = 0
        # By identity: number of objects that have it, and elements and bytes as counted.
        self._known: dict[int, tuple[int, int, int]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Counts a tensor of one more object."""
        objects, elements, nbytes = self._known.get(id(tensor), (0, 0, 0))
        if not objects:
            elements, nbytes = tensor.numel(), tensor.numel() * tensor.element_size()
            self.elements += elements
            self.nbytes += nbytes
        self._known[id(tensor)] = (objects + 1, elements, nbytes)

    def remove(self, key: int) -> None:
        """An object that has a tensor of this identity is gone."""
        objects, elements, nbytes = self._known.pop(key)
        if objects > 1:
            self._known[key] = (objects - 1, elements, nbytes)
        else:
            self.elements -= elements
            self.nbytes -= nbytes


class ObjectCounts:
    """Counts objects as they come and go, by kind. The caller's lock guards it.

    `optimizers` has those with a name. Of `buffers` those count that modules had when they were added. With `quotas`,
    they count for the accounts of those that have made them, too.
    """

    def __init__(self, table_budget: TableBudget | None = None, quotas: Quotas | None = None) -> None:
        self.table_budget: Final = table_budget
        self._quotas = quotas if quotas is not None and quotas.is_on else None
        # What was counted for the account of each object.
        self._counted: dict[int, int] = {}
        self.kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.parameters: Final = Tensors()
        self.buffers: Final = Tensors()
        self.optimizers: dict[str, HostedOptimizer] = {}
        self.tables: dict[str, RowsOfTable] = {}
        # The buffers that were counted for each object, because modules may replace their buffers.
        self._buffers_of: dict[int, list[int]] = {}

    def check(self, account: Account, made: HostedObject | None = None, instead_of: HostedObject | None = None) -> None:
        """Raises `QuotaError` if an account may have no further object, or not one that was `made`."""
        if self._quotas is None:
            return
        nbytes = 0 if made is None else _size(made)
        objects = 1
        if instead_of is not None and instead_of.account == account:
            nbytes, objects = nbytes - self._counted.get(id(instead_of), 0), 0
        self._quotas.check(account, objects=objects, object_bytes=nbytes)

    def add(self, hosted: HostedObject) -> None:
        """Counts a new object."""
        self.kinds[kind_of(hosted.value)] += 1
        if self._quotas is not None:
            self._counted[id(hosted)] = nbytes = _size(hosted)
            self._quotas.take(hosted.account, objects=1, object_bytes=nbytes)
        if hosted.name and isinstance(hosted.value, HostedOptimizer):
            self.optimizers[hosted.name] = hosted.value
        if isinstance(hosted.value, RowsOfTable):
            self.tables[hosted.name] = hosted.value
            budget = self.table_budget
            if budget is not None and self._quotas is not None:
                budget = AccountBudget(self._quotas, hosted.account, budget)
            if budget is not None:
                hosted.value.shard.count_in(budget, str(hosted.value))
            return  # its rows come and go
        for parameter in hosted.parameters.values():
            self.parameters.add(parameter)
        if isinstance(hosted.value, nn.Module) and (buffers := list(hosted.value.buffers())):
            self._buffers_of[id(hosted)] = [id(buffer) for buffer in buffers]
            for buffer in buffers:
                self.buffers.add(buffer)

    def remove(self, hosted: HostedObject) -> None:
        """Removes an object that is gone."""
        self.kinds[kind_of(hosted.value)] -= 1
        if self._quotas is not None:
            self._quotas.give(hosted.account, objects=1, object_bytes=self._counted.pop(id(hosted)))
        if hosted.name and self.optimizers.get(hosted.name) is hosted.value:
            del self.optimizers[hosted.name]
        if isinstance(hosted.value, RowsOfTable):
            if self.tables.get(hosted.name) is hosted.value:
                del self.tables[hosted.name]
            return
        for parameter in hosted.parameters.values():
            self.parameters.remove(id(parameter))
        for key in self._buffers_of.pop(id(hosted), ()):
            self.buffers.remove(key)


def _size(hosted: HostedObject) -> int:
    """The bytes of an object that count for its account. Those of results and of rows count elsewhere."""
    if hosted.shares or hosted.is_table:
        return 0
    return size(hosted.value) if hosted.is_tensor else hosted.size[1]


def kind_of(value: Any) -> str:
    """The kind of an object, one of `KINDS`."""
    return next((kind for cls, kind in _KINDS if isinstance(value, cls)), "other")
