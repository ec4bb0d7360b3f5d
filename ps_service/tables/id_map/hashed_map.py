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

from ps_service.tables.id_map.id_map import IdMap, Ids
from ps_service.tables.reservation import Reservation

Words = npt.NDArray[np.uint64]

SEGMENTS: Final = 256
SEGMENT_SHIFT: Final = 56
TAG_SHIFT: Final = 32
ROW_MASK: Final = (1 << TAG_SHIFT) - 1
REMOVED: Final = ROW_MASK

_SMALLEST: Final = 16
"""Slots of a segment at first."""

MOST_ROWS: Final = REMOVED - 1
"""The most rows that a map can have."""


class HashedMap(IdMap):
    """The arrays of such a map.

    Attributes:
        salt: Is added to ids before they are mixed. It is random and secret, so nobody can choose ids that
            collide. Rows do not depend on it.
        slots: All segments.
        sizes: Slots of each segment, powers of 2.
        used: Slots of each segment that are not 0.
        fills: The load at which each segment doubles.
    """

    def __init__(self, capacity: int) -> None:
        self.salt: Final = np.uint64(secrets.randbits(64))
        self.fills: Final = 0.4 * np.exp2(np.arange(SEGMENTS) / SEGMENTS)
        share = capacity / SEGMENTS
        self._largest: Final = max(_SMALLEST, 1 << int((share + 8 * share**0.5) / 0.4).bit_length())
        super().__init__(capacity)

    def clear(self) -> None:
        super().clear()
        slots = Reservation.make(2 * SEGMENTS * self._largest, torch.int64)
        self._reserved_slots = slots
        self.slots: Words = np.zeros(2 * SEGMENTS * _SMALLEST, np.uint64)
        if slots is not None:
            self.slots = slots.tensor.numpy().view(np.uint64)
        self.sizes: Ids = np.full(SEGMENTS, _SMALLEST, np.int64)
        self.used: Ids = np.zeros(SEGMENTS, np.int64)
        self._known_sizes = self.sizes.copy()

    def widen(self, size: int) -> None:
        """Makes room for segments of this size: where nothing is reserved, or if one gets far more than its share."""
        in_use = 2 * SEGMENTS * int(self.sizes.max())
        self._reserved_slots = Reservation.make(4 * SEGMENTS * size, torch.int64)
        slots = np.zeros(2 * SEGMENTS * size, np.uint64)
        if self._reserved_slots is not None:
            slots = self._reserved_slots.tensor.numpy().view(np.uint64)
        slots[:in_use] = self.slots[:in_use]
        self.slots = slots

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
