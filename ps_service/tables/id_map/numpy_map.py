"""The map of ids with numpy: all ids are probed at once, in rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import torch

from ps_service.tables.id_map.base import BaseIdMap, too_many
from ps_service.tables.id_map.layout import REMOVED, ROW_MASK, SEGMENT_SHIFT, SEGMENTS, TAG_SHIFT, Layout, Words
from ps_wire.tables.hashing import mix

if TYPE_CHECKING:
    from ps_service.tables.id_map.numbering import Ids

_TAG = np.uint64(TAG_SHIFT)
_ROW = np.uint64(ROW_MASK)
_ONE = np.uint64(1)
_MARK = np.uint64(REMOVED)


class NumpyIdMap(BaseIdMap):
    """An `IdMap` without numba."""

    implementation = "torch"

    def __init__(self, capacity: int) -> None:
        self._layout: Final = Layout(capacity)
        super().__init__(self._layout)

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._positions_and_rows(ids.numpy())[1])

    def find_or_add(self, ids: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        given = ids.numpy()
        rows = self._positions_and_rows(given)[1]
        new = np.zeros(len(given), np.bool_)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            added, first, inverse = np.unique(given[missing], return_index=True, return_inverse=True)
            if len(self) + len(added) > min(most, self._layout.capacity):
                raise too_many(most)
            order = np.argsort(first)
            new[missing[first]] = True
            new_rows = np.empty(len(added), np.int64)
            new_rows[order] = self._layout.take(len(added))
            self._add(added[order], new_rows[order])
            rows[missing] = new_rows[inverse]
        return torch.from_numpy(rows), torch.from_numpy(new)

    def remove(self, ids: torch.Tensor) -> torch.Tensor:
        layout = self._layout
        given = ids.numpy()
        _, first = np.unique(given, return_index=True)
        positions, rows = self._positions_and_rows(given[np.sort(first)])
        there = rows >= 0
        freed = rows[there]
        layout.slots[positions[there]] = _MARK
        layout.put_back(freed)
        return torch.from_numpy(freed)

    def _positions_and_rows(self, ids: Ids) -> tuple[Ids, Ids]:
        """Where in the slots the ids are, and their rows; both -1 where an id is missing."""
        layout = self._layout
        positions = np.full(len(ids), -1, np.int64)
        rows = np.full(len(ids), -1, np.int64)
        mixed = mix(ids, int(layout.salt))
        segments = (mixed >> np.uint64(SEGMENT_SHIFT)).view(np.int64)
        tags = _tags(mixed)
        sizes = layout.sizes[segments]
        base, mask, at = sizes * (SEGMENTS + segments), sizes - 1, _homes(tags, sizes)
        left = np.arange(len(ids))
        step = 0
        while len(left):
            probed = base[left] + ((at[left] + step) & mask[left])
            found = layout.slots[probed]
            candidate = ((found & _ROW) - _ONE).view(np.int64)
            same = (found >> _TAG == tags[left]) & (found != 0) & (candidate != REMOVED - 1)
            same[same] = layout.row_ids[candidate[same]] == ids[left[same]]
            positions[left[same]] = probed[same]
            rows[left[same]] = candidate[same]
            left = left[(found != 0) & ~same]
            step += 1
        return positions, rows

    def _add(self, ids: Ids, rows: Ids) -> None:
        """Adds different ids that are missing."""
        layout = self._layout
        layout.row_ids[rows] = ids
        mixed = mix(ids, int(layout.salt))
        segments = (mixed >> np.uint64(SEGMENT_SHIFT)).view(np.int64)
        coming = np.bincount(segments, minlength=SEGMENTS)
        for segment in np.flatnonzero(layout.used + coming > layout.sizes * layout.fills).tolist():
            self._rebuild(segment, int(coming[segment]))
        layout.settle()
        layout.used += coming
        self._place(segments, _tags(mixed) << _TAG | (rows.view(np.uint64) + _ONE))

    def _rebuild(self, segment: int, coming: int) -> None:
        """Makes room for more ids in a segment, and forgets its marks."""
        layout = self._layout
        begin = int(layout.sizes[segment]) * (SEGMENTS + segment)
        there = layout.slots[begin : begin + int(layout.sizes[segment])]
        words = there[(there != 0) & (there & _ROW != _MARK)]
        there[:] = 0
        size = int(layout.sizes[segment])
        while len(words) + coming > size * layout.fills[segment]:
            size *= 2
        if size * (SEGMENTS + segment + 1) > len(layout.slots):
            layout.widen(size)
        layout.sizes[segment] = size
        layout.used[segment] = len(words)
        self._place(np.full(len(words), segment), words)

    def _place(self, segments: npt.NDArray[np.int64], words: Words) -> None:
        """Writes the words of ids that are missing, where there is room."""
        layout = self._layout
        sizes = layout.sizes[segments]
        base, mask, at = sizes * (SEGMENTS + segments), sizes - 1, _homes(words >> _TAG, sizes)
        left = np.arange(len(words))
        step = 0
        while len(left):
            probed = base[left] + ((at[left] + step) & mask[left])
            empty = layout.slots[probed] == 0
            # Of several that want one slot, the last one written has it, and the others go on.
            layout.slots[probed[empty]] = words[left[empty]]
            left = left[layout.slots[probed] != words[left]]
            step += 1


def _tags(mixed: Words) -> Words:
    """The 32 bits below those of the segment."""
    return mixed >> np.uint64(SEGMENT_SHIFT - 32) & np.uint64(0xFFFFFFFF)


def _homes(tags: Words, sizes: Ids) -> Ids:
    """Where in their segments the searches begin."""
    return (tags * sizes.view(np.uint64) >> _TAG).view(np.int64)
