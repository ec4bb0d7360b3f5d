"""What has changed in a shard since a version, as it was at one moment, for those who read it in several pieces."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch

from ps_service.tables.pinned_rows import PinnedRows
from ps_service.tables.row_reading import without_rows

if TYPE_CHECKING:
    from ps_service.tables.feed import Changed
    from ps_service.tables.shard import Block, TableShard
    from ps_wire.tables.versions import RowsVersion

MOST: Final = 4
"""How many may read one table in this way at the same time."""

SECONDS: Final = 60.0
"""How long a next piece is waited for."""


class HeldChanges(PinnedRows):
    """Rows that have changed, by their numbers, as they were when this was made, and ids of rows that had gone.

    `asked` is when a piece was asked for last.
    """

    def __init__(self, shard: TableShard, changed: Changed, may_grow: Callable[[HeldChanges], bool]) -> None:
        super().__init__(shard)
        self.asked = 0.0
        self._numbers: Final = changed.numbers.to(torch.int32)
        self._gone: Final = without_rows(shard, changed.removed)
        self._may_grow: Final = may_grow

    @property
    def has_room(self) -> bool:
        """Whether tables may take more memory."""
        return self._shard.population.budget.room(self._shard.row_bytes) > 0

    def keep(self, numbers: torch.Tensor) -> None:
        """As `RowKeeper.keep`."""
        if self._may_grow(self):
            super().keep(numbers)

    def piece(self, begin: int, count: int) -> tuple[Block, torch.Tensor, int | None]:
        """`count` rows from a place on, the ids of those that had gone, which come with the first, and the next place;
        None at the end."""
        block = self.at(self._numbers[begin : begin + count].long())
        following = begin + count if begin + count < len(self._numbers) else None
        return block, self._gone if begin == 0 else self._gone[:0], following


class ChangesReaders:
    """Those who read what has changed in one shard, by a number that each of them has. It is used under the lock of the
    shard. What nobody asks for any more is given up, and all of it where tables have no room for more copies."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._held: Final[dict[int, HeldChanges]] = {}

    def begin(self, shard: TableShard, since: RowsVersion) -> int | None:
        """Keeps what has changed since a version as it is now, and returns its number; None if that is not known, or
        too many read already."""
        for number, each in list(self._held.items()):
            self._check(number, each)
        changed = shard.feed.since(since, 0, shard.max_rows + 1)
        if changed is None or len(self._held) >= MOST:
            return None
        number = secrets.randbits(53)
        self._held[number] = HeldChanges(shard, changed, lambda each: self._check(number, each))
        self._held[number].asked = self._clock()
        return number

    def find(self, number: int) -> HeldChanges | None:
        """What is kept under a number, if it still is; somebody asks for it."""
        held = self._held.get(number)
        if held is not None:
            held.asked = self._clock()
        return held

    def end(self, number: int) -> None:
        """All of it was read."""
        self._held.pop(number, None)

    def _check(self, number: int, held: HeldChanges) -> bool:
        """Whether it may go on; else it is given up."""
        may_go_on = self._clock() - held.asked <= SECONDS and held.has_room
        if not may_go_on:
            self.end(number)
        return may_go_on
