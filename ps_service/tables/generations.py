"""Names of rows that never come to mean the row of another id."""

from __future__ import annotations

from typing import Final

import torch

from ps_service.tables.row_gradients import key_space
from ps_service.tables.storage import make_rows


class Generations:
    """Generational indices of rows: a key is the number of a row below how often the row has been freed.

    So the key of a row that was removed is that of no row any more, also once another id has its number. The
    generations of a row begin again after more than a million in any table of less than 10^11 numbers. The row with the
    number `capacity`, which ids without one read, has keys, too. It is used under the lock of a shard.
    """

    def __init__(self, capacity: int, dim: int) -> None:
        self._bits: Final = capacity.bit_length()
        self._mask: Final = (key_space(dim) >> self._bits) - 1
        self._freed: Final = make_rows(capacity + 1, 1, torch.int32)  # pages of zeros take no memory
        self._highest = 0
        self._base = 0

    def keys(self, numbers: torch.Tensor) -> torch.Tensor:
        """The keys of rows, int64 [n]."""
        if not self._highest and not self._base:
            return numbers
        generations = (self._freed.read(numbers)[:, 0].long() + self._base) & self._mask
        return numbers | generations << self._bits

    def numbers(self, keys: torch.Tensor) -> torch.Tensor:
        """The numbers of the rows that these keys were made for, int64 [n]."""
        if not self._highest and not self._base:
            return keys
        return keys & ((1 << self._bits) - 1)

    def current(self, keys: torch.Tensor) -> torch.Tensor | None:
        """Which of the keys are still those of their rows, bool [n]; None if all are."""
        if not self._highest and not self._base:
            return None
        there = self.keys(self.numbers(keys)) == keys
        return None if there.all() else there

    def free(self, numbers: torch.Tensor) -> None:
        """Ends the keys of different rows, int64 [n]."""
        if len(numbers):
            freed = self._freed.read(numbers) + 1
            self._freed.write(numbers, freed)
            self._highest = max(self._highest, int(freed.max()))

    def clear(self) -> None:
        """Ends all keys."""
        self._base += self._highest + 1
        self._highest = 0
        self._freed.clear()
