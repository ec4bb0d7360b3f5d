"""The map of ids with numpy: all ids are probed at once, in rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from ps_service.tables.id_map.hashed_map import REMOVED, ROW_MASK, SEGMENT_SHIFT, SEGMENTS, TAG_SHIFT, HashedMap, Words
from ps_service.tables.id_map.id_map import too_many
from ps_wire.tables.hashing import mix

if TYPE_CHECKING:
    from ps_service.tables.id_map.id_map import Ids

_TAG = np.uint64(TAG_SHIFT)
_ROW = np.uint64(ROW_MASK)
_ONE = np.uint64(1)
_MARK = np.uint64(REMOVED)


class NumpyHashedMap(HashedMap):
    """An `IdMap` without numba."""

    implementation = "torch"

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._positions_and_rows(ids.numpy())[1])

    def find_or_add(self, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        given = ids.numpy()
        rows = self._positions_and_rows(given)[1]
        new = np.zeros(len(given), np.bool_)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            added, first, inverse = np.unique(given[missing], return_index=True, return_inverse=True)
            if len(self) + len(added) > min(most, self.capacity):
                raise too_many(most)
            order = np.argsort(first)
            new[missing[first]] = True
            new_rows = np.empty(len(added), np.int64)
            new_rows[order] = self.take(len(added))
            self._add(added[order], new_rows[order])
            rows[missing] = new_rows[inverse]
        return torch.from_numpy(rows), torch.from_numpy(new)

    def remove(self, ids: torch.Tensor) -> torch.Tensor:
        given = ids.numpy()
        _, first = np.unique(given, return_index=True)
        positions, rows = self._positions_and_rows(given[np.sort(first)])
        there = rows >= 0
        freed = rows[there]
        self.slots[positions[there]] = _MARK
        self.put_back(freed)
        return torch.from_numpy(freed)

    def _positions_and_rows(self, ids: Ids) -> tuple[Ids, Ids]:
        """Where in the slots the ids are, and their rows; both -1 where an id is missing."""
        positions = np.full(len(ids), -1, np.int64)
        rows = np.full(len(ids), -1, np.int64)
        mixed = mix(ids, int(self.salt))
        segments = (mixed >> np.uint64(SEGMENT_SHIFT)).view(np.int64)
        tags = _tags(mixed)
        sizes = self.sizes[segments]
        base, mask, at = sizes * (SEGMENTS + segments), sizes - 1, _homes(tags, sizes)
        left = np.arange(len(ids))
        step = 0
        while len(left):
            probed = base[left] + ((at[left] + step) & mask[left])
            found = self.slots[probed]
            candidate = ((found & _ROW) - _ONE).view(np.int64)
            same = (found >> _TAG == tags[left]) & (found != 0) & (candidate != REMOVED - 1)
            same[same] = self.row_ids[candidate[same]] == ids[left[same]]
            positions[left[same]] = probed[same]
            rows[left[same]] = candidate[same]
            left = left[(found != 0) & ~same]
            step += 1
        return positions, rows

    def _add(self, ids: Ids, rows: Ids) -> None:
        """Adds different ids that are missing."""
        self.row_ids[rows] = ids
        mixed = mix(ids, int(self.salt))
        segments = (mixed >> np.uint64(SEGMENT_SHIFT)).view(np.int64)
        coming = np.bincount(segments, minlength=SEGMENTS)
        for segment in np.flatnonzero(self.used + coming > self.sizes * self.fills).tolist():
            self._rebuild(segment, int(coming[segment]))
        self.settle()
        self.used += coming
        self._place(segments, _tags(mixed) << _TAG | (rows.view(np.uint64) + _ONE))

    def _rebuild(self, segment: int, coming: int) -> None:
        """Makes room for more ids in a segment, and forgets its marks."""
        begin = int(self.sizes[segment]) * (SEGMENTS + segment)
        there = self.slots[begin : begin + int(self.sizes[segment])]
        words = there[(there != 0) & (there & _ROW != _MARK)]
        there[:] = 0
        size = int(self.sizes[segment])
        while len(words) + coming > size * self.fills[segment]:
            size *= 2
        if size * (SEGMENTS + segment + 1) > len(self.slots):
            self.widen(size)
        self.sizes[segment] = size
        self.used[segment] = len(words)
        self._place(np.full(len(words), segment), words)

    def _place(self, segments: npt.NDArray[np.int64], words: Words) -> None:
        """Writes the words of ids that are missing, where there is room."""
        sizes = self.sizes[segments]
        base, mask, at = sizes * (SEGMENTS + segments), sizes - 1, _homes(words >> _TAG, sizes)
        left = np.arange(len(words))
        step = 0
        while len(left):
            probed = base[left] + ((at[left] + step) & mask[left])
            empty = self.slots[probed] == 0
            # Of several that want one slot, the last one written has it, and the others go on.
            self.slots[probed[empty]] = words[left[empty]]
            left = left[self.slots[probed] != words[left]]
            step += 1


def _tags(mixed: Words) -> Words:
    """The 32 bits below those of the segment."""
    return mixed >> np.uint64(SEGMENT_SHIFT - 32) & np.uint64(0xFFFFFFFF)


def _homes(tags: Words, sizes: Ids) -> Ids:
    """Where in their segments the searches begin."""
    return (tags * sizes.view(np.uint64) >> _TAG).view(np.int64)
