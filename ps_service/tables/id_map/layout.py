"""How a map of ids is laid out in memory. Both implementations work on the same layout.

The map is divided into 256 segments by the highest bits of an id's mix. Each is an open-addressing hash table with
linear probing, at its own place in one array that is reserved for the largest size. A segment that is full doubles in
its place, so a growth step rebuilds one segment, 1/256 of the map. Segments double at different loads, from 0.4 to 0.8,
evenly spread on a logarithmic scale. So they double one after the other while the map grows, and the slots always take
20 to 21 bytes per id.

A slot is one word: 0 if it was never used, else 24 bits of the mix above 40 bits with the row's number plus 1. The ids
are not in the slots, but in an array by row. Slots of removed ids keep a mark (all 40 bits set) until the segment is
rebuilt.
"""

from __future__ import annotations

import secrets
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ps_service.tables.reservation import reserve

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

SEGMENTS: Final = 256
SEGMENT_SHIFT: Final = 56
TAG_SHIFT: Final = 40
ROW_MASK: Final = (1 << TAG_SHIFT) - 1
REMOVED: Final = ROW_MASK

_SMALLEST: Final = 16
"""Slots of a segment at first."""


class Layout:
    """The arrays of a map.

    Attributes:
        salt: Is added to ids before they are mixed. It is random and secret, so nobody can choose ids that
            collide. Rows do not depend on it.
        slots: All segments; segment `s` begins at `s * stride`.
        stride: Most slots of a segment before the whole array is laid out anew.
        sizes: Slots of each segment, powers of 2.
        used: Slots of each segment that are not 0.
        fills: The load at which each segment doubles.
        row_ids: The id of each row.
        free: Rows that were freed, as a stack; the first `counts[1]` are valid.
        counts: Rows that were ever used, and freed rows.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.salt: Final = np.uint64(secrets.randbits(64))
        self.fills: Final = 0.4 * np.exp2(np.arange(SEGMENTS) / SEGMENTS)
        share = capacity / SEGMENTS
        self._widest = max(_SMALLEST, 1 << int((share + 8 * share**0.5) / 0.4).bit_length())
        self.clear()

    def clear(self) -> None:
        """Forgets all ids, and gives the memory back."""
        self.stride = self._widest
        slots = reserve(SEGMENTS * self.stride, torch.int64)
        if slots is None:  # begin small, and lay out anew when a segment is full
            self.stride = _SMALLEST
            slots = torch.zeros(SEGMENTS * self.stride, dtype=torch.int64)
        ids = reserve(self.capacity, torch.int64)
        self._grows = ids is None
        self.slots: Words = slots.numpy().view(np.uint64)
        self.row_ids: Ids = np.zeros(0, np.int64) if ids is None else ids.numpy()
        self.sizes: Ids = np.full(SEGMENTS, _SMALLEST, np.int64)
        self.used: Ids = np.zeros(SEGMENTS, np.int64)
        self.free: Ids = np.zeros(0, np.int64)
        self.counts: Ids = np.zeros(2, np.int64)

    def widen(self) -> None:
        """Gives each segment twice the room."""
        wider = reserve(SEGMENTS * self.stride * 2, torch.int64)
        if wider is None:
            wider = torch.zeros(SEGMENTS * self.stride * 2, dtype=torch.int64)
        slots: Words = wider.numpy().view(np.uint64)
        for segment, size in enumerate(self.sizes.tolist()):
            begin = segment * self.stride
            slots[2 * begin : 2 * begin + size] = self.slots[begin : begin + size]
        self.slots = slots
        self.stride *= 2
        self._widest = max(self._widest, self.stride)

    def make_room(self, rows: int) -> None:
        """Makes room for the ids of this many rows in all."""
        if self._grows and rows > len(self.row_ids):
            grown = np.zeros(min(max(rows, 2 * len(self.row_ids), 1024), self.capacity), np.int64)
            grown[: len(self.row_ids)] = self.row_ids
            self.row_ids = grown

    def make_room_to_free(self, rows: int) -> None:
        """Makes room for this many more freed rows."""
        needed = int(self.counts[1]) + rows
        if needed > len(self.free):
            grown = np.zeros(max(needed, 2 * len(self.free), 1024), np.int64)
            grown[: len(self.free)] = self.free
            self.free = grown

    @property
    def memory(self) -> int:
        """Bytes in use."""
        return 8 * int(self.sizes.sum()) + 8 * int(self.counts[0]) + self.free.nbytes
