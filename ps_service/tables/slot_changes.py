"""Notes which rows of some slots change while they are copied to another owner."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import torch

from ps_wire.tables.routing import slots_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ps_service.tables.row_changes import RowChange
    from ps_service.tables.shard import Block, TableShard

ABANDONED_SECONDS: Final = 60.0
"""Seconds after which a move is given up that nobody goes on with."""

_MOST_NOTED: Final = 256
"""Changes after which their ids are put together."""

_UNTOLD: Final = nullcontext()


def ids_between(shard: TableShard, begin: int, count: int) -> tuple[torch.Tensor, int | None]:
    """The ids of the rows in use among the `count` numbers from `begin` on, and the number to go on with; None at the
    end."""
    with shard.lock:
        ids, in_use = shard.population.map.between(begin, begin + count)
        return ids[in_use], begin + count if begin + count < shard.population.map.rows else None


def rows_with(shard: TableShard, ids: torch.Tensor) -> tuple[Block, torch.Tensor]:
    """Copies of the rows of different ids, and the ids that have none."""
    with shard.lock:
        numbers = shard.population.map.find(ids)
        there = numbers >= 0
        numbers = numbers[there]
        block = {**shard.population.images(numbers).values, **shard.population.life(numbers)}
        return block, ids[~there]


class SlotChanges:
    """As `RowLog`: tells the log of the shard, if there is one, and notes the ids of rows in some slots, bool [SLOTS].
    All is done under the lock of the shard. It is `void`, and notes nothing more, if all rows have gone at once, or if
    nobody has asked for what has changed for a long time.
    """

    def __init__(self, shard: TableShard, slots: torch.Tensor) -> None:
        self.void = False
        self._shard = shard
        self._slots = slots
        self._log = shard.population.log
        self._noted: list[torch.Tensor] = []
        self._asked = time.monotonic()

    def begin(self) -> None:
        """Notes changes from now on."""
        with self._shard.lock:
            self._shard.tell(self)
            self._shard.steps.watch = self.stepped

    def end(self) -> None:
        """Notes no more."""
        with self._shard.lock:
            if self._shard.population.log is self:
                self._shard.tell(self._log)
                self._shard.steps.watch = None

    def stepped(self, ids: torch.Tensor) -> None:
        """Rows of ids were updated."""
        self._noted.append(ids)
        if len(self._noted) >= _MOST_NOTED:
            self._noted = [torch.cat(self._noted).unique()]
            if time.monotonic() - self._asked > ABANDONED_SECONDS:
                self._give_up()

    def _give_up(self) -> None:
        self.void = True
        self._noted = []
        self.end()

    def goes_on(self) -> bool:
        """Whether it still notes; somebody asks."""
        self._asked = time.monotonic()
        return not self.void

    def take(self, most: int) -> tuple[torch.Tensor, int]:
        """At most so many of the ids that were noted, each once, and how many are left. They are not noted any more."""
        noted = torch.cat(self._noted) if self._noted else torch.empty(0, dtype=torch.int64)
        ids = noted.unique()
        ids = ids[self._slots[slots_of(ids)]]
        taken, left = ids[:most], ids[most:]
        self._noted = [left] if len(left) else []
        return taken, len(left)

    # As `RowLog`

    def check(self, nbytes: int) -> None:
        """As `RowLog.check`."""
        if self._log is not None:
            self._log.check(nbytes)

    def note(self, change: RowChange) -> None:
        """As `RowLog.note`."""
        if change.kind == "cleared":
            self._give_up()
        elif change.kind != "admission":
            self.stepped(change.values["ids"].clone())
        if self._log is not None:
            self._log.note(change)

    def telling(self) -> AbstractContextManager[None]:
        """As `RowLog.telling`."""
        return _UNTOLD if self._log is None else self._log.telling()
