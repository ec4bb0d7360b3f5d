"""The map's loops over ids, compiled by numba. Imported only where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps_service.tables.compiled import compiled
from ps_service.tables.id_map.layout import REMOVED, ROW_MASK, SEGMENT_SHIFT, SEGMENTS, TAG_SHIFT
from ps_wire.tables.hashing import FIRST, SECOND

_FIRST = np.uint64(FIRST)
_SECOND = np.uint64(SECOND)
_ROW = np.uint64(ROW_MASK)
_TAG = np.uint64(TAG_SHIFT)
_SEGMENT = np.uint64(SEGMENT_SHIFT)
_MARK = np.uint64(REMOVED)
_ONE = np.uint64(1)
_EMPTY = np.uint64(0)
_TAG_BITS = np.uint64(0xFFFFFFFF)
_SEGMENTS = np.int64(SEGMENTS)
_GROUP = 64
_S24, _S27, _S30, _S31 = np.uint64(24), np.uint64(27), np.uint64(30), np.uint64(31)


@compiled
def mixed_of(identity: Any, salt: Any) -> Any:
    """`ps_wire.tables.hashing.mix` of one id."""
    x = np.uint64(identity) + salt
    x = (x ^ (x >> _S30)) * _FIRST
    x = (x ^ (x >> _S27)) * _SECOND
    return x ^ (x >> _S31)


@compiled
def tag_of(mixed: Any) -> Any:
    """The 32 bits below those of the segment."""
    return mixed >> _S24 & _TAG_BITS


@compiled
def home_of(size: Any, tag: Any) -> Any:
    """Where in a segment the search for an id begins."""
    return tag * np.uint64(size) >> _TAG


@compiled
def position_of(slots: Any, sizes: Any, row_ids: Any, mixed: Any, identity: Any) -> Any:
    """Where an id is, or -1 minus the position of the empty slot that ends its search."""
    segment = np.int64(mixed >> _SEGMENT)
    base = sizes[segment] * (_SEGMENTS + segment)
    mask = np.uint64(sizes[segment] - 1)
    tag = tag_of(mixed)
    at = home_of(sizes[segment], tag)
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
def guess(slots: Any, sizes: Any, row_ids: Any, salt: Any, ids: Any, mixed: Any, rows: Any) -> None:
    """Mixes a group of ids, and writes the rows of those that are at the first place of their search, or else -1.

    All ids are brought one step further at a time. The reads of a step do not wait for each other, so the processor has
    many of them under way, and what is read next for an id is in its cache.
    """
    for i in range(len(ids)):
        mixed[i] = mixed_of(ids[i], salt)
    for i in range(len(ids)):
        segment = np.int64(mixed[i] >> _SEGMENT)
        size = sizes[segment]
        tag = tag_of(mixed[i])
        word = slots[size * (_SEGMENTS + segment) + np.int64(home_of(size, tag))]
        row = word & _ROW
        there = word != _EMPTY and row != _MARK and word >> _TAG == tag
        rows[i] = np.int64(row - _ONE) if there else -1
    for i in range(len(ids)):
        if rows[i] >= 0 and row_ids[rows[i]] != ids[i]:
            rows[i] = -1


@compiled
def find(slots: Any, sizes: Any, row_ids: Any, salt: Any, ids: Any, rows: Any) -> None:
    """Writes the rows of ids, or -1."""
    mixed = np.empty(_GROUP, np.uint64)
    for begin in range(0, len(ids), _GROUP):
        end = min(begin + _GROUP, len(ids))
        guess(slots, sizes, row_ids, salt, ids[begin:end], mixed, rows[begin:end])
        for i in range(begin, end):
            if rows[i] < 0:
                at = position_of(slots, sizes, row_ids, mixed[i - begin], ids[i])
                rows[i] = -1 if at < 0 else np.int64((slots[at] & _ROW) - _ONE)


@compiled
def rebuild(slots: Any, sizes: Any, used: Any, fills: Any, segment: Any) -> Any:
    """Makes room for one more id in a segment, and forgets its marks; False if the array is too small for that."""
    size = sizes[segment]
    base = size * (_SEGMENTS + segment)
    words = np.empty(used[segment], np.uint64)
    count = 0
    for i in range(base, base + size):
        if slots[i] != _EMPTY and slots[i] & _ROW != _MARK:
            words[count] = slots[i]
            count += 1
    # An eighth of what the segment holds may come before it is rebuilt again, or marks would cause that too often.
    while count + 1 + count // 8 > size * fills[segment]:
        size *= 2
    if size > sizes[segment]:
        base = size * (_SEGMENTS + segment)
        if base + size > len(slots):
            return False
    else:
        slots[base : base + size] = _EMPTY
    sizes[segment] = size
    used[segment] = count
    mask = np.uint64(size - 1)
    for i in range(count):
        at = home_of(size, words[i] >> _TAG)
        while slots[base + np.int64(at)] != _EMPTY:
            at = (at + _ONE) & mask
        slots[base + np.int64(at)] = words[i]
    return True


@compiled
def find_or_add(
    slots: Any,
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
        -1 minus a position says that the array of slots is too small.
    """
    mixed = np.empty(_GROUP, np.uint64)
    for first in range(begin, len(ids), _GROUP):
        end = min(first + _GROUP, len(ids))
        guess(slots, sizes, row_ids, salt, ids[first:end], mixed, rows[first:end])
        for i in range(first, end):
            if rows[i] >= 0:
                continue
            at = position_of(slots, sizes, row_ids, mixed[i - first], ids[i])
            if at >= 0:
                rows[i] = np.int64((slots[at] & _ROW) - _ONE)
                continue
            if counts[0] - counts[1] >= most:
                return i
            segment = np.int64(mixed[i - first] >> _SEGMENT)
            if used[segment] + 1 > sizes[segment] * fills[segment]:
                if not rebuild(slots, sizes, used, fills, segment):
                    return -1 - i
                at = position_of(slots, sizes, row_ids, mixed[i - first], ids[i])
            if counts[1] > 0:
                counts[1] -= 1
                row = free[counts[1]]
            else:
                if counts[0] >= len(row_ids):
                    return i
                row = counts[0]
                counts[0] += 1
            row_ids[row] = ids[i]
            slots[-1 - at] = tag_of(mixed[i - first]) << _TAG | (np.uint64(row) + _ONE)
            used[segment] += 1
            rows[i] = row
            new[i] = True
    return len(ids)


@compiled
def remove(slots: Any, sizes: Any, row_ids: Any, free: Any, counts: Any, salt: Any, ids: Any, freed: Any) -> Any:
    """Removes ids and writes their rows. Returns how many there were."""
    count = 0
    for i in range(len(ids)):
        at = position_of(slots, sizes, row_ids, mixed_of(ids[i], salt), ids[i])
        if at >= 0:
            row = np.int64((slots[at] & _ROW) - _ONE)
            slots[at] = _MARK
            free[counts[1]] = row
            counts[1] += 1
            freed[count] = row
            count += 1
    return count
