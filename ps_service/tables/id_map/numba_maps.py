"""The maps of ids with numba: one compiled loop over the ids, without Python's global lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ps_service.tables.id_map import kernels
from ps_service.tables.id_map.direct_map import DirectMap
from ps_service.tables.id_map.hashed_map import HashedMap
from ps_service.tables.id_map.id_map import too_many

if TYPE_CHECKING:
    from ps_service.tables.id_map.id_map import IdMap, Ids


class NumbaHashedMap(HashedMap):
    """An `IdMap` compiled by numba."""

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        rows = np.empty(len(ids), np.int64)
        kernels.find(self.slots, self.sizes, self.row_ids, self.salt, ids.numpy(), rows)
        return torch.from_numpy(rows)

    def find_or_add(self, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        given = ids.numpy()
        limit = min(most, self.capacity)
        rows, new = np.empty(len(given), np.int64), np.zeros(len(given), np.bool_)
        before = self.rows
        at = 0
        while at < len(given):
            stopped = kernels.find_or_add(
                *(self.slots, self.sizes, self.used, self.fills, self.row_ids, self.free),
                *(self.counts, self.salt, limit, given, rows, new, at),
            )
            if stopped < 0:
                at = -1 - stopped
                self.widen(2 * int(self.sizes.max()))
                continue
            at = stopped
            if at < len(given):
                if len(self) >= limit:
                    _take_back(self, given[:at][new[:at]])
                    raise too_many(most)
                self.make_room(self.rows + 1)
        if self.rows != before:
            self.make_room(self.rows)
            self.settle()
        return torch.from_numpy(rows), torch.from_numpy(new)

    def remove(self, ids: torch.Tensor) -> torch.Tensor:
        given = ids.numpy()
        self.make_room_to_free(min(len(given), len(self)))
        freed = np.empty(len(given), np.int64)
        count = kernels.remove(self.slots, self.sizes, self.row_ids, self.free, self.counts, self.salt, given, freed)
        return torch.from_numpy(freed[:count].copy())


class NumbaDirectMap(DirectMap):
    """An `IdMap` of the ids from 0 to below `ids`, compiled by numba."""

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        rows = np.empty(len(ids), np.int64)
        kernels.find_entries(self.entries, ids.numpy(), rows)
        return torch.from_numpy(rows)

    def find_or_add(self, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        given = ids.numpy()
        rows, new = np.empty(len(given), np.int64), np.zeros(len(given), np.bool_)
        if kernels.find_entries(self.entries, given, rows):
            self.check(given)
            limit = min(most, self.capacity)
            at = 0
            while at < len(given):
                at = kernels.add_entries(
                    self.entries, self.row_ids, self.free, self.counts, limit, given, rows, new, at
                )
                if at < len(given) and len(self) >= limit:
                    _take_back(self, given[:at][new[:at]])
                    raise too_many(most)
                self.make_room(self.rows + (at < len(given)))
        return torch.from_numpy(rows), torch.from_numpy(new)

    def remove(self, ids: torch.Tensor) -> torch.Tensor:
        given = ids.numpy()
        self.make_room_to_free(min(len(given), len(self)))
        freed = np.empty(len(given), np.int64)
        count = kernels.remove_entries(self.entries, self.free, self.counts, given, freed)
        return torch.from_numpy(freed[:count].copy())


def _take_back(id_map: IdMap, added: Ids) -> None:
    """Removes ids that were added, last one first, so that the next ids get the rows that these had."""
    id_map.remove(torch.from_numpy(added[::-1].copy()))
