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

    The value of a row after fewer steps is the copy of the first step after them that changed the row, or the value
    that it has now. A row that began anew has another key. The table calls `note` before it updates rows, while nobody
    else may update it, and forgets this object when nobody else has it.
    """

    def __init__(self, table: _Table) -> None:
        self._shard = table.shard
        # By number, what a step has changed; beside it, what was changed since the last step.
        self._steps: OrderedDict[int, list[_Before]] = OrderedDict()
        self._since: list[_Before] = []
        table.backups = (*(each for each in table.backups if each() is not None), ref(self))

    def note(self, keys: torch.Tensor) -> None:
        """Copies rows that are about to change; their keys are different ones, ascending, int64 [n]."""
        self._since.append(_Before(keys, self._shard.read(keys).float()))

    def end(self, steps: int) -> None:
        """What was changed since the last call was changed by the last of so many steps."""
        changed, self._since = self._since, []
        self._steps.setdefault(steps, []).extend(changed)

    def forget(self, steps: int) -> None:
        """Forgets what is needed for fewer steps only."""
        while self._steps and next(iter(self._steps)) <= steps:
            self._steps.popitem(last=False)

    def moved(self, keys: torch.Tensor, steps: int) -> torch.Tensor:
        """How far rows have moved since so many steps, float32 [n, dim]: their values now, less those of then. `forget`
        must not have been called with more."""
        now = self._shard.read(keys).float()
        then, is_found = now.clone(), torch.zeros(len(keys), dtype=torch.bool, device="cpu")
        later = [step for number, step in self._steps.items() if number > steps]
        for before in (each for step in (*later, self._since) for each in step if len(each.keys)):
            place = torch.searchsorted(before.keys, keys).clamp_(max=len(before.keys) - 1)
            first = (before.keys[place] == keys) & ~is_found
            then[first] = before.values[place[first]]
            is_found |= first
        return now - then
