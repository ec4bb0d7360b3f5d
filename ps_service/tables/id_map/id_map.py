"""A map from ids to rows: what all implementations have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ps_service.tables.reservation import Reservation
from ps_wire.errors import TooLargeError

Ids = npt.NDArray[np.int64]


class IdMap(ABC):
    """A map from any int64 id to the number of a row. One thread may change it at a time, and none may read it then.

    Ids get the lowest rows that were never used, in the order in which they are first added, after the rows of removed
    ids, of which the last freed comes first. `row_ids` has the id of each row. `free` has rows that were freed, as a
    stack, of which the first `counts[1]` are valid; `counts[0]` is how many rows were ever used.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.clear()

    def clear(self) -> None:
        """Removes all ids, and gives the memory back."""
        self._reserved_ids = made = Reservation.make(self.capacity, torch.int64)
        self.row_ids: Ids = np.zeros(0, np.int64) if made is None else made.tensor.numpy()
        self.free: Ids = np.zeros(0, np.int64)
        self.counts: Ids = np.zeros(2, np.int64)

    @abstractmethod
    def find(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids, int64 [n]; -1 where an id has none."""

    @abstractmethod
    def find_or_add(self, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of ids, which may repeat, adding those that are missing; and which positions added an id, bool [n].
        Raises `TooLargeError`, with the map as before, if there would be more than `most` ids."""

    @abstractmethod
    def remove(self, ids: torch.Tensor) -> torch.Tensor:
        """Removes ids, which may repeat and may be missing. Returns the rows that are free now, int64."""

    def items(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All ids and their rows, both int64 [len], in the order of the rows."""
        ids, in_use = self.between(0, self.rows)
        rows = np.flatnonzero(in_use.numpy())
        return torch.from_numpy(ids.numpy()[rows]), torch.from_numpy(rows)

    def ids_of(self, rows: torch.Tensor) -> torch.Tensor:
        """The ids of rows that are in use."""
        return torch.from_numpy(self.row_ids.take(rows.numpy(), mode="clip"))

    def between(self, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids of the rows from `begin` to before `end`, int64 [n], as a view, and which of the rows are in use."""
        used, freed = self.counts.tolist()
        end = max(begin, min(end, used))
        in_use = np.ones(end - begin, np.bool_)
        free = self.free[:freed]
        in_use[free[(free >= begin) & (free < end)] - begin] = False
        return torch.from_numpy(self.row_ids[begin:end]), torch.from_numpy(in_use)

    @property
    def rows(self) -> int:
        """How many rows were ever in use: one more than the largest number of a row."""
        return int(self.counts[0])

    @property
    def memory(self) -> int:
        """Bytes in use."""
        return 8 * int(self.counts[0]) + self.free.nbytes

    def __len__(self) -> int:
        used, freed = self.counts.tolist()
        return int(used - freed)

    def make_room(self, rows: int) -> None:
        """Makes room for the ids of this many rows in all."""
        if self._reserved_ids is not None:
            self._reserved_ids.grown(rows)
        elif rows > len(self.row_ids):
            self.row_ids = _grown(self.row_ids, min(max(rows, 2 * len(self.row_ids), 1024), self.capacity))

    def make_room_to_free(self, rows: int) -> None:
        """Makes room for this many more freed rows."""
        needed = int(self.counts[1]) + rows
        if needed > len(self.free):
            self.free = _grown(self.free, max(needed, 2 * len(self.free), 1024))

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


def _grown(array: Ids, length: int) -> Ids:
    return np.concatenate([array, np.zeros(length - len(array), np.int64)])


def too_many(most: int) -> TooLargeError:
    """The error for a map that would have more ids than it may."""
    return TooLargeError(
        f"there would be more than {most:,} rows, the limit of this table; raise it, evict rows, or admit fewer ids"
    )
