"""The arrays of a map whose ids are the numbers from 0 to below some number: one entry for each id."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ps_service.tables.id_map.numbering import Ids, Numbering
from ps_service.tables.reservation import Reservation

MOST_IDS: Final = 1 << 25
"""The most ids. Entries take memory in pages of a thousand, at most 128 MiB if a few ids of each page are used."""

MOST_SHARES: Final = 5
"""Among how many maps ids may be divided: each has entries for all of them, of 4 bytes instead of 20 for its own."""

_LARGE_SHARE: Final = 8
"""Once this part of the ids has rows, so that nearly all pages are in use, they may be large ones."""


class DirectLayout(Numbering):
    """The arrays of such a map.

    Attributes:
        ids: Number of ids.
        entries: For each id its row plus 1, or 0, int32 [ids].
    """

    def __init__(self, ids: int, capacity: int) -> None:
        self.ids: Final = ids
        super().__init__(capacity)

    def clear(self) -> None:
        super().clear()
        self._reserved_entries = Reservation.make(self.ids, torch.int32)
        self.entries: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        if self._reserved_entries is None:
            self.entries = np.zeros(self.ids, np.int32)
        else:
            self.entries = self._reserved_entries.tensor.numpy()

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
