"""What has changed in a shard since a version, as it was at one moment, for those who read it in several pieces."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from ps_service.tables.pinned_rows import PinnedRows
from ps_service.tables.row_reading import without_rows

if TYPE_CHECKING:
    import torch

    from ps_service.tables.feed import Changed
    from ps_service.tables.shard import Block, TableShard
    from ps_wire.tables.versions import RowsVersion

MOST: Final = 4
"""How many may read one table in this way at the same time."""

SECONDS: Final = 60.0
"""How long a next piece is waited for."""


class HeldChanges(PinnedRows):
    """Rows that have changed, and ids of rows that had gone, as they were when this was made. A row is kept until its
    piece is read.

    `mark` is that of the table then. `asked` is when a piece was asked for last, in seconds, and `next` where the next
    one begins; None after the last.
    """

    def __init__(self, shard: TableShard, changed: Changed, mark: int, asked: float) -> None:
        self._numbers: Final = changed.numbers
        self._gone: Final = without_rows(shard, changed.removed)
        super().__init__(shard, changed.numbers)
        self.mark: Final = mark
        self.asked = asked
        self.next: int | None = 0

    @property
    def nbytes(self) -> int:
        """As `PinnedRows.nbytes`, with what says which rows these are."""
        return super().nbytes + self._numbers.nbytes + self._gone.nbytes

    def piece(self, count: int) -> tuple[Block, torch.Tensor]:
        """The next `count` rows, which are forgotten, and the ids of those that had gone, which come with the first."""
        begin, end = self.next or 0, (self.next or 0) + count
        numbers = self._numbers[begin:end]
        block = self.at(numbers)
        self.forget(numbers)
        self.next = end if end < len(self._numbers) else None
        return block, self._gone if begin == 0 else self._gone[:0]


class ChangesReaders:
    """Those who read what has changed in one shard, by a number that each of them has. It is used under the lock of the
    shard, but for `sweep` and `end`. What is kept for them is given up where tables have no room for something else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._held: Final[dict[int, HeldChanges]] = {}

    def begin(self, shard: TableShard, since: RowsVersion, mark: int) -> int | None:
        """Keeps what has changed since a version as it is now, and returns its number; None if that is not known, or
        too many read already, or there is no room."""
        self.sweep()
        budget = shard.population.budget
        if len(self._held) >= MOST or not budget.room(shard.row_bytes):
            return None
        changed = shard.feed.since(since, 0, shard.max_rows + 1)
        if changed is None:
            return None
        number = secrets.randbits(53)
        self._held[number] = held = HeldChanges(shard, changed, mark, self._clock())
        budget.spare(held, partial(self.end, number))
        return number

    def find(self, number: int) -> HeldChanges | None:
        """What is kept under a number, if it still is; somebody asks for it."""
        held = self._held.get(number)
        if held is not None:
            held.asked = self._clock()
        return held

    def end(self, number: int) -> None:
        """Gives up what is kept under a number."""
        self._held.pop(number, None)

    def sweep(self) -> None:
        """Gives up what nobody asks for any more."""
        for number, each in list(self._held.items()):
            if self._clock() - each.asked > SECONDS:
                self.end(number)
