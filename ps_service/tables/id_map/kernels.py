"""The map's loops over ids, compiled by numba. Imported only where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps_service.tables.compiled import compiled
from ps_service.tables.id_map.layout import REMOVED, ROW_MASK, SEGMENT_SHIFT, TAG_SHIFT
from ps_wire.tables.hashing import FIRST, SECOND

_FIRST = np.uint64(FIRST)
_SECOND = np.uint64(SECOND)
_ROW = np.uint64(ROW_MASK)
_TAG = np.uint64(TAG_SHIFT)
_SEGMENT = np.uint64(SEGMENT_SHIFT)
_MARK = np.uint64(REMOVED)
_ONE = np.uint64(1)
_EMPTY = np.uint64(0)
_TAG_BITS = np.uint64(0xFFFFFF)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


@compiled
def mixed_of(identity: Any, salt: Any) -> Any:
    """`ps_wire.tables.hashing.mix` of one id."""
    x = np.uint64(identity) + salt
    x = (x ^ (x >> _S30)) * _FIRST
    x = (x ^ (x >> _S27)) * _SECOND
    return x ^ (x >> _S31)


@compiled
def position_of(slots: Any, stride: Any, sizes: Any, row_ids: Any, mixed: Any, identity: Any) -> Any:
    """Where an id is, or -1 minus the position of the empty slot that ends its search."""
    segment = np.int64(mixed >> _SEGMENT)
    base = segment * stride
    mask = np.uint64(sizes[segment] - 1)
    tag = mixed >> _S32 & _TAG_BITS
    at = mixed & mask
    while True:
        word = slots[base + np.int64(at)]
        if word == _EMPTY:
            return -1 - (base + np.int64(at))
        if word >> _TAG == tag:
            row = word & _ROW
            if row != _MARK and row_ids[np.int64(row - _ONE)] == identity:
                return base + np.int64(at)
        at = (at + _ONE) & mask


@compiled
def find(slots: Any, stride: Any, sizes: Any, row_ids: Any, salt: Any, ids: Any, rows: Any) -> None:
    """Writes the rows of ids, or -1."""
    for i in range(len(ids)):
        at = position_of(slots, stride, sizes, row_ids, mixed_of(ids[i], salt), ids[i])
        rows[i] = -1 if at < 0 else np.int64((slots[at] & _ROW) - _ONE)


@compiled
def rebuild(slots: Any, stride: Any, sizes: Any, used: Any, fills: Any, row_ids: Any, salt: Any, segment: Any) -> Any:
    """Makes room for one more id in a segment, and forgets its marks; False if it has to be wider than the stride."""
    base = segment * stride
    size = sizes[segment]
    rows = np.empty(used[segment], np.int64)
    count = 0
    for i in range(base, base + size):
        row = slots[i] & _ROW
        if slots[i] != _EMPTY and row != _MARK:
            rows[count] = np.int64(row - _ONE)
            count += 1
    # Half of what the segment holds may come before it is rebuilt again, or marks would cause that too often.
    while count + 1 + count // 8 > size * fills[segment]:
        size *= 2
    if size > stride:
        return False
    slots[base : base + sizes[segment]] = _EMPTY
    sizes[segment] = size
    used[segment] = count
    mask = np.uint64(size - 1)
    for i in range(count):
        mixed = mixed_of(row_ids[rows[i]], salt)
        at = mixed & mask
        while slots[base + np.int64(at)] != _EMPTY:
            at = (at + _ONE) & mask
        slots[base + np.int64(at)] = (mixed >> _S32 & _TAG_BITS) << _TAG | (np.uint64(rows[i]) + _ONE)
    return True


@compiled
def find_or_add(
    slots: Any,
    stride: Any,
    sizes: Any,
    used: Any,
    fills: Any,
    row_ids: Any,
    free: Any,
    counts: Any,
    salt: Any,
    most: Any,
    ids: Any,
    rows: Any,
    new: Any,
    begin: Any,
) -> Any:
    """Writes the rows of ids from position `begin`, adding those that are missing.

    Returns:
        Where it stopped: `len(ids)` at the end; the position of an id for which there is no room.
        -1 minus a position says that a segment has to be wider than the stride.
    """
    for i in range(begin, len(ids)):
        identity = ids[i]
        mixed = mixed_of(identity, salt)
        at = position_of(slots, stride, sizes, row_ids, mixed, identity)
        if at >= 0:
            rows[i] = np.int64((slots[at] & _ROW) - _ONE)
            continue
        if counts[0] - counts[1] >= most:
            return i
        segment = np.int64(mixed >> _SEGMENT)
        if used[segment] + 1 > sizes[segment] * fills[segment]:
            if not rebuild(slots, stride, sizes, used, fills, row_ids, salt, segment):
                return -1 - i
            at = position_of(slots, stride, sizes, row_ids, mixed, identity)
        if counts[1] > 0:
            counts[1] -= 1
            row = free[counts[1]]
        else:
            if counts[0] >= len(row_ids):
                return i
            row = counts[0]
            counts[0] += 1
        row_ids[row] = identity
        slots[-1 - at] = (mixed >> _S32 & _TAG_BITS) << _TAG | (np.uint64(row) + _ONE)
        used[segment] += 1
        rows[i] = row
        new[i] = True
    return len(ids)


@compiled
def remove(
    slots: Any, stride: Any, sizes: Any, row_ids: Any, free: Any, counts: Any, salt: Any, ids: Any, freed: Any
) -> Any:
    """Removes ids and writes their rows. Returns how many there were."""
    count = 0
    for i in range(len(ids)):
        at = position_of(slots, stride, sizes, row_ids, mixed_of(ids[i], salt), ids[i])
        if at >= 0:
            row = np.int64((slots[at] & _ROW) - _ONE)
            slots[at] = _MARK
            free[counts[1]] = row
            counts[1] += 1
            freed[count] = row
            count += 1
    return count
