"""The map with an entry for each id, with numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from ps_service.tables.id_map.base import BaseIdMap, too_many
from ps_service.tables.id_map.direct_layout import DirectLayout

if TYPE_CHECKING:
    from ps_service.tables.id_map.numbering import Ids


class NumpyDirectMap(BaseIdMap):
    """An `IdMap` of the ids from 0 to below `ids`, without numba."""

    implementation = "torch"

    def __init__(self, ids: int, capacity: int) -> None:
        self._layout: Final = DirectLayout(ids, capacity)
        super().__init__(self._layout)

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._rows_of(ids.numpy()))

    def find_or_add(self, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        layout, given = self._layout, ids.numpy()
        rows, new = self._rows_of(given), np.zeros(len(given), np.bool_)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            layout.check(given)
            added, first = np.unique(given[missing], return_index=True)
            if len(self) + len(added) > min(most, layout.capacity):
                raise too_many(most)
            new[missing[first]] = True
            added = given[new]
            taken = layout.take(len(added))
            layout.row_ids[taken] = added
            layout.entries[added] = taken + 1
            rows[missing] = self._rows_of(given[missing])
        return torch.from_numpy(rows), torch.from_numpy(new)

    def remove(self, ids: torch.Tensor) -> torch.Tensor:
        layout, given = self._layout, ids.numpy()
        _, first = np.unique(given, return_index=True)
        given = given[np.sort(first)]
        rows = self._rows_of(given)
        there = rows >= 0
        freed = rows[there]
        layout.entries[given[there]] = 0
        layout.put_back(freed)
        return torch.from_numpy(freed)

    def _rows_of(self, ids: Ids) -> Ids:
        """The rows of ids; -1 where an id has none."""
        rows = self._layout.entries.take(ids, mode="clip").astype(np.int64) - 1
        outside = ids.view(np.uint64) >= self._layout.ids
        if outside.any():
            rows[outside] = -1
        return rows
