"""The values that rows of a table had before its last steps, for gradients that were computed with them."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import ref

import torch

if TYPE_CHECKING:
    from ps_service.tables.shard import TableShard


class _Before(NamedTuple):
    """Rows as they were before an update: their keys, ascending, int64 [n], and their values, float32 [n, dim]."""

    keys: torch.Tensor
    values: torch.Tensor


class _Table(Protocol):
    """What backups need of a table."""

    backups: tuple[ref[RowBackups], ...]
    shard: TableShard


class RowBackups:
    """Copies of the rows that the last steps of a table have changed, as they were before.

    The value of a row at an earlier version is the copy of the first step after it that changed the row, or the value
    that it has now. A row that began anew has another key. The table calls `note` before it updates rows, while nobody
    else may update it, and forgets this object when nobody else has it.
    """

    def __init__(self, table: _Table) -> None:
        self._shard = table.shard
        # By version, what its step has changed; beside it, what was changed since the last version.
        self._steps: OrderedDict[int, list[_Before]] = OrderedDict()
        self._since: list[_Before] = []
        table.backups = (*(each for each in table.backups if each() is not None), ref(self))

    def note(self, keys: torch.Tensor) -> None:
        """Copies rows that are about to change; their keys are different ones, ascending, int64 [n]."""
        self._since.append(_Before(keys, self._shard.read(keys).float()))

    def end(self, version: int) -> None:
        """What was changed since the last call was changed by the step to this version."""
        self._steps[version], self._since = self._since, []

    def forget(self, version: int) -> None:
        """Forgets what is needed for versions before this one only."""
        while self._steps and next(iter(self._steps)) <= version:
            self._steps.popitem(last=False)

    def moved(self, keys: torch.Tensor, version: int) -> torch.Tensor:
        """How far rows have moved since a version, float32 [n, dim]: their values now, less those of then. `forget`
        must not have been called with a later version."""
        now = self._shard.read(keys).float()
        then, is_found = now.clone(), torch.zeros(len(keys), dtype=torch.bool, device="cpu")
        steps = [step for number, step in self._steps.items() if number > version]
        for before in (each for step in (*steps, self._since) for each in step if len(each.keys)):
            place = torch.searchsorted(before.keys, keys).clamp_(max=len(before.keys) - 1)
            first = (before.keys[place] == keys) & ~is_found
            then[first] = before.values[place[first]]
            is_found |= first
        return now - then
