"""A map whose ids are the numbers from 0 to below some number: one entry for each id, with the number of its row."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ps_service.tables.id_map.id_map import IdMap, Ids, too_many
from ps_service.tables.reservation import Reservation

MOST_IDS: Final = 1 << 25
"""The most ids. Entries take memory in pages of a thousand, at most 128 MiB if a few ids of each page are used."""

MOST_SHARES: Final = 5
"""Among how many maps ids may be divided: each has entries for all of them, of 4 bytes instead of 20 for its own."""

_LARGE_SHARE: Final = 8
"""Once this part of the ids has rows, so that nearly all pages are in use, they may be large ones."""


class DirectMap(IdMap):
    """The arrays of such a map: `entries` has for each of `ids` ids its row plus 1, or 0, int32 [ids]."""

    def __init__(self, ids: int, capacity: int) -> None:
        self.ids: Final = ids
        super().__init__(capacity)

    def clear(self) -> None:
        super().clear()
        self._reserved_entries = made = Reservation.make(self.ids, torch.int32)
        self.entries: npt.NDArray[np.int32] = np.zeros(self.ids, np.int32) if made is None else made.tensor.numpy()

    def check(self, ids: Ids) -> None:
        """Raises `IndexError` if one of some ids has no entry."""
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.ids):
            raise IndexError(f"this map has the ids 0 to {self.ids - 1}")

    def make_room(self, rows: int) -> None:
        super().make_room(rows)
        if self._reserved_entries is not None and _LARGE_SHARE * rows >= self.ids:
            self._reserved_entries.used(self.ids)

    @property
    def memory(self) -> int:
        return 4 * self.ids + super().memory


class NumpyDirectMap(DirectMap):
    """An `IdMap` of the ids from 0 to below `ids`, without numba."""

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._rows_of(ids.numpy()))

    def find_or_add(self, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        given = ids.numpy()
        rows, new = self._rows_of(given), np.zeros(len(given), np.bool_)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            self.check(given)
            added, first = np.unique(given[missing], return_index=True)
            if len(self) + len(added) > min(most, self.capacity):
                raise too_many(most)
            new[missing[first]] = True
            added = given[new]
            taken = self.take(len(added))
            self.row_ids[taken] = added
            self.entries[added] = taken + 1
            rows[missing] = self._rows_of(given[missing])
        return torch.from_numpy(rows), torch.from_numpy(new)

    def remove(self, ids: torch.Tensor) -> torch.Tensor:
        given = ids.numpy()
        _, first = np.unique(given, return_index=True)
        given = given[np.sort(first)]
        rows = self._rows_of(given)
        there = rows >= 0
        freed = rows[there]
        self.entries[given[there]] = 0
        self.put_back(freed)
        return torch.from_numpy(freed)

    def _rows_of(self, ids: Ids) -> Ids:
        """The rows of ids; -1 where an id has none."""
        rows = self.entries.take(ids, mode="clip").astype(np.int64) - 1
        outside = ids.view(np.uint64) >= self.ids
        if outside.any():
            rows[outside] = -1
        return rows
