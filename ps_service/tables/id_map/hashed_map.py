"""How a map of ids is laid out in memory. Both implementations work on the same layout.

The map is divided into 256 segments by the highest bits of an id's mix. Each is an open-addressing hash table with
linear probing. A segment that is full moves to one of twice its size, so a growth step rebuilds one segment, 1/256 of
the map. Segments double at different loads, from 0.4 to 0.8, evenly spread on a logarithmic scale. So they double one
after the other while the map grows, and the slots take 20 to 21 bytes per id on average.

All segments are in one array of reserved addresses. Segment `s` of size `n` begins at `n * (256 + s)`: those of one
size lie side by side, which keeps the pages few, and no list of places is needed. What segments leave is given back.

A slot is one word: 0 if it was never used, else a tag, the next 32 bits of the mix, above 32 bits with the row's number
plus 1. The ids are not in the slots, but in an array by row. Slots of removed ids keep a mark (all low bits set) until
the segment is rebuilt. The search for an id begins at the place that its tag has among all tags, `tag * size >> 32`. So
a segment of twice the size has its words in the same order, and is written from first to last without reading an id.
"""

from __future__ import annotations

import secrets
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ps_service.tables.id_map.id_map import IdMap, Ids, too_many
from ps_service.tables.reservation import Reservation
from ps_wire.tables.hashing import mix

Words = npt.NDArray[np.uint64]

SEGMENTS: Final = 256
SEGMENT_SHIFT: Final = np.uint64(56)
TAG_SHIFT: Final = np.uint64(32)
TAG_IN_MIX: Final = np.uint64(24)
ROW_MASK: Final = np.uint64(0xFFFFFFFF)
REMOVED: Final = ROW_MASK
ONE: Final = np.uint64(1)

_SMALLEST: Final = 16
"""Slots of a segment at first."""

MOST_ROWS: Final = int(REMOVED) - 1
"""The most rows that a map can have."""


class HashedMap(IdMap):
    """The arrays of such a map: the slots of all segments, and of each how many it has, a power of 2, and has used. A
    segment doubles at its load in `fills`. The salt is added to ids before they are mixed. It is random and secret, so
    nobody can choose ids that collide. Rows do not depend on it."""

    def __init__(self, capacity: int) -> None:
        self.salt: Final = np.uint64(secrets.randbits(64))
        self.fills: Final = 0.4 * np.exp2(np.arange(SEGMENTS) / SEGMENTS)
        share = capacity / SEGMENTS
        self._largest: Final = max(_SMALLEST, 1 << int((share + 8 * share**0.5) / 0.4).bit_length())
        super().__init__(capacity)

    def clear(self) -> None:
        super().clear()
        self.slots: Words = self._reserve_slots(2 * SEGMENTS * self._largest, 2 * SEGMENTS * _SMALLEST)
        self.sizes: Ids = np.full(SEGMENTS, _SMALLEST, np.int64)
        self.used: Ids = np.zeros(SEGMENTS, np.int64)
        self._known_sizes = self.sizes.copy()

    def widen(self, size: int) -> None:
        """Makes room for segments of this size: where nothing is reserved, or if one gets far more than its share."""
        in_use = 2 * SEGMENTS * int(self.sizes.max())
        slots = self._reserve_slots(4 * SEGMENTS * size, 2 * SEGMENTS * size)
        slots[:in_use] = self.slots[:in_use]
        self.slots = slots

    def _reserve_slots(self, most: int, least: int) -> Words:
        """Slots that are zero: as addresses for the most, or where nothing can be reserved, the least."""
        self._reserved_slots = made = Reservation.make(most, torch.int64)
        return np.zeros(least, np.uint64) if made is None else made.tensor.numpy().view(np.uint64)

    def settle(self) -> None:
        """Gives back what segments have left, after ids were added."""
        if self._reserved_slots is not None:
            for segment in np.flatnonzero(self.sizes != self._known_sizes).tolist():
                size = int(self._known_sizes[segment])
                begin = size * (SEGMENTS + segment)
                while size < self.sizes[segment]:
                    self._reserved_slots.give_back(begin, begin + size)
                    begin, size = begin * 2, size * 2
            self._reserved_slots.used(2 * SEGMENTS * int(self.sizes.max()))
        self._known_sizes[:] = self.sizes

    @property
    def memory(self) -> int:
        return 8 * int(self.sizes.sum()) + super().memory


class NumpyHashedMap(HashedMap):
    """An `IdMap` without numba: all ids are probed at once, in rounds."""

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
        self.slots[positions[there]] = REMOVED
        self.put_back(freed)
        return torch.from_numpy(freed)

    def _positions_and_rows(self, ids: Ids) -> tuple[Ids, Ids]:
        """Where in the slots the ids are, and their rows; both -1 where an id is missing."""
        positions = np.full(len(ids), -1, np.int64)
        rows = np.full(len(ids), -1, np.int64)
        mixed = mix(ids, int(self.salt))
        segments = (mixed >> SEGMENT_SHIFT).view(np.int64)
        tags = _tags(mixed)
        sizes = self.sizes[segments]
        base, mask, at = sizes * (SEGMENTS + segments), sizes - 1, _homes(tags, sizes)
        left = np.arange(len(ids))
        step = 0
        while len(left):
            probed = base[left] + ((at[left] + step) & mask[left])
            found = self.slots[probed]
            candidate = ((found & ROW_MASK) - ONE).view(np.int64)
            same = (found >> TAG_SHIFT == tags[left]) & (found != 0) & (candidate != MOST_ROWS)
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
        segments = (mixed >> SEGMENT_SHIFT).view(np.int64)
        coming = np.bincount(segments, minlength=SEGMENTS)
        for segment in np.flatnonzero(self.used + coming > self.sizes * self.fills).tolist():
            self._rebuild(segment, int(coming[segment]))
        self.settle()
        self.used += coming
        self._place(segments, _tags(mixed) << TAG_SHIFT | (rows.view(np.uint64) + ONE))

    def _rebuild(self, segment: int, coming: int) -> None:
        """Makes room for more ids in a segment, and forgets its marks."""
        begin = int(self.sizes[segment]) * (SEGMENTS + segment)
        there = self.slots[begin : begin + int(self.sizes[segment])]
        words = there[(there != 0) & (there & ROW_MASK != REMOVED)]
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
        base, mask, at = sizes * (SEGMENTS + segments), sizes - 1, _homes(words >> TAG_SHIFT, sizes)
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
    return mixed >> TAG_IN_MIX & ROW_MASK


def _homes(tags: Words, sizes: Ids) -> Ids:
    """Where in their segments the searches begin."""
    return (tags * sizes.view(np.uint64) >> TAG_SHIFT).view(np.int64)
