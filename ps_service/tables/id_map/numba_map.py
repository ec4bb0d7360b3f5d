"""The map of ids with numba: one compiled loop over the ids, without Python's global lock."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from ps_service.tables.id_map import kernels
from ps_service.tables.id_map.base import BaseIdMap, too_many
from ps_service.tables.id_map.layout import Layout


class NumbaIdMap(BaseIdMap):
    """An `IdMap` compiled by numba."""

    implementation = "numba"

    def __init__(self, capacity: int) -> None:
        self._layout: Final = Layout(capacity)
        super().__init__(self._layout)

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        layout = self._layout
        rows = np.empty(len(ids), np.int64)
        kernels.find(layout.slots, layout.sizes, layout.row_ids, layout.salt, ids.numpy(), rows)
        return torch.from_numpy(rows)

    def find_or_add(self, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        layout = self._layout
        given = ids.numpy()
        limit = min(most, layout.capacity)
        rows = np.empty(len(given), np.int64)
        new = np.zeros(len(given), np.bool_)
        before = int(layout.counts[0])
        at = 0
        while at < len(given):
            stopped = kernels.find_or_add(
                *(layout.slots, layout.sizes, layout.used, layout.fills, layout.row_ids, layout.free),
                *(layout.counts, layout.salt, limit, given, rows, new, at),
            )
            if stopped < 0:
                at = -1 - stopped
                layout.widen(2 * int(layout.sizes.max()))
            elif stopped < len(given) and len(self) >= limit:
                self._take_back(given[:stopped][new[:stopped]])
                raise too_many(most)
            else:
                at = stopped
                if at < len(given):
                    layout.make_room(int(layout.counts[0]) + 1)
        if layout.counts[0] != before:
            layout.make_room(int(layout.counts[0]))
            layout.settle()
        return torch.from_numpy(rows), torch.from_numpy(new)

    def remove(self, ids: torch.Tensor) -> torch.Tensor:
        layout = self._layout
        given = ids.numpy()
        layout.make_room_to_free(min(len(given), len(self)))
        freed = np.empty(len(given), np.int64)
        count = kernels.remove(
            *(layout.slots, layout.sizes, layout.row_ids, layout.free, layout.counts, layout.salt),
            *(given, freed),
        )
        return torch.from_numpy(freed[:count].copy())

    def _take_back(self, added: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Removes ids that were added, last one first, so that the next ids get the rows that these had."""
        self.remove(torch.from_numpy(added[::-1].copy()))
