"""The numbers of rows: which id has which, and which are free."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ps_service.tables.reservation import Reservation

Ids = npt.NDArray[np.int64]


class Numbering:
    """The arrays of a map that are by the number of a row.

    Attributes:
        capacity: The most rows.
        row_ids: The id of each row.
        free: Rows that were freed, as a stack; the first `counts[1]` are valid.
        counts: Rows that were ever used, and freed rows.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.clear()

    def clear(self) -> None:
        """Forgets all ids, and gives the memory back."""
        ids = Reservation.make(self.capacity, torch.int64)
        self._reserved_ids = ids
        self.row_ids: Ids = np.zeros(0, np.int64) if ids is None else ids.tensor.numpy()
        self.free: Ids = np.zeros(0, np.int64)
        self.counts: Ids = np.zeros(2, np.int64)

    def make_room(self, rows: int) -> None:
        """Makes room for the ids of this many rows in all."""
        if self._reserved_ids is not None:
            self._reserved_ids.grown(rows)
        elif rows > len(self.row_ids):
            grown = np.zeros(min(max(rows, 2 * len(self.row_ids), 1024), self.capacity), np.int64)
            grown[: len(self.row_ids)] = self.row_ids
            self.row_ids = grown

    def make_room_to_free(self, rows: int) -> None:
        """Makes room for this many more freed rows."""
        needed = int(self.counts[1]) + rows
        if needed > len(self.free):
            grown = np.zeros(max(needed, 2 * len(self.free), 1024), np.int64)
            grown[: len(self.free)] = self.free
            self.free = grown

    def take(self, count: int) -> Ids:
        """Rows for new ids, int64 [count]: freed ones first, of which the last freed comes first."""
        used, freed = self.counts.tolist()
        again = min(count, freed)
        self.counts[1] -= again
        self.counts[0] += count - again
        self.make_room(used + count - again)
        return np.concatenate([self.free[freed - again : freed][::-1], np.arange(used, used + count - again)])

    def put_back(self, rows: Ids) -> None:
        """Frees rows, of which the last is used again first."""
        self.make_room_to_free(len(rows))
        count = int(self.counts[1])
        self.free[count : count + len(rows)] = rows
        self.counts[1] += len(rows)

    @property
    def memory(self) -> int:
        """Bytes in use."""
        return 8 * int(self.counts[0]) + self.free.nbytes
