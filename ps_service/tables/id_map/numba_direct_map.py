"""The map with an entry for each id, with numba: one compiled loop over the ids, without Python's global lock."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from ps_service.tables.id_map import direct_kernels
from ps_service.tables.id_map.base import BaseIdMap, too_many
from ps_service.tables.id_map.direct_layout import DirectLayout


class NumbaDirectMap(BaseIdMap):
    """An `IdMap` of the ids from 0 to below `ids`, compiled by numba."""

    implementation = "numba"

    def __init__(self, ids: int, capacity: int) -> None:
        self._layout: Final = DirectLayout(ids, capacity)
        super().__init__(self._layout)

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        rows = np.empty(len(ids), np.int64)
        direct_kernels.find(self._layout.entries, ids.numpy(), rows)
        return torch.from_numpy(rows)

    def find_or_add(self, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        layout, given = self._layout, ids.numpy()
        rows, new = np.empty(len(given), np.int64), np.zeros(len(given), np.bool_)
        if direct_kernels.find(layout.entries, given, rows):
            layout.check(given)
            limit = min(most, layout.capacity)
            at = 0
            while at < len(given):
                at = direct_kernels.add(
                    *(layout.entries, layout.row_ids, layout.free, layout.counts, limit, given, rows, new, at)
                )
                if at < len(given) and len(self) >= limit:
                    # The last one first, so that the next ids get the rows that these had.
                    self.remove(torch.from_numpy(given[:at][new[:at]][::-1].copy()))
                    raise too_many(most)
                layout.make_room(int(layout.counts[0]) + (at < len(given)))
        return torch.from_numpy(rows), torch.from_numpy(new)

    def remove(self, ids: torch.Tensor) -> torch.Tensor:
        layout, given = self._layout, ids.numpy()
        layout.make_room_to_free(min(len(given), len(self)))
        freed = np.empty(len(given), np.int64)
        count = direct_kernels.remove(layout.entries, layout.free, layout.counts, given, freed)
        return torch.from_numpy(freed[:count].copy())
