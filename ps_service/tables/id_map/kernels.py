"""The loops of both maps over ids, compiled by numba. Imported only where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps_service.tables.compiled import compiled
from ps_service.tables.id_map.hashed_map import ONE, REMOVED, ROW_MASK, SEGMENT_SHIFT, SEGMENTS, TAG_IN_MIX, TAG_SHIFT
from ps_service.tables.kernels.loops import mixed_of
from ps_service.tables.kernels.prefetching import prefetch

_EMPTY = np.uint64(0)
_SEGMENTS = np.int64(SEGMENTS)
_GROUP = 64
"""Ids that are brought on together."""

_TURNS = 3
"""Groups under way."""


@compiled
def tag_of(mixed: Any) -> Any:
    """The 32 bits below those of the segment."""
    return mixed >> TAG_IN_MIX & ROW_MASK


@compiled
def home_of(size: Any, tag: Any) -> Any:
    """Where in a segment the search for an id begins."""
    return tag * np.uint64(size) >> TAG_SHIFT


@compiled
def position_of(slots: Any, sizes: Any, row_ids: Any, mixed: Any, identity: Any) -> Any:
    """Where an id is, or -1 minus the position of the empty slot that ends its search."""
    segment = np.int64(mixed >> SEGMENT_SHIFT)
    base = sizes[segment] * (_SEGMENTS + segment)
    mask = np.uint64(sizes[segment] - 1)
    tag = tag_of(mixed)
    at = home_of(sizes[segment], tag)
    while True:
        word = slots[base + np.int64(at)]
        if word == _EMPTY:
            return -1 - (base + np.int64(at))
        if word >> TAG_SHIFT == tag:
            row = word & ROW_MASK
            if row != REMOVED and row_ids[np.int64(row - ONE)] == identity:
                return base + np.int64(at)
        at = (at + ONE) & mask


@compiled
def mix_group(slots: Any, sizes: Any, salt: Any, ids: Any, mixed: Any) -> None:
    """Mixes ids, and asks the processor for the slots where their searches begin."""
    for i in range(len(ids)):
        mixed[i] = mixed_of(np.uint64(ids[i]) + salt)
        segment = np.int64(mixed[i] >> SEGMENT_SHIFT)
        size = sizes[segment]
        prefetch(slots, size * (_SEGMENTS + segment) + np.int64(home_of(size, tag_of(mixed[i]))))


@compiled
def read_group(slots: Any, sizes: Any, row_ids: Any, mixed: Any, rows: Any) -> None:
    """Writes the rows that slots have for the tags of ids, or -1, and asks for the ids of these rows."""
    for i in range(len(rows)):
        segment = np.int64(mixed[i] >> SEGMENT_SHIFT)
        base = sizes[segment] * (_SEGMENTS + segment)
        mask = np.uint64(sizes[segment] - 1)
        tag = tag_of(mixed[i])
        at = home_of(sizes[segment], tag)
        rows[i] = -1
        while True:
            word = slots[base + np.int64(at)]
            if word == _EMPTY:
                break
            if word >> TAG_SHIFT == tag and word & ROW_MASK != REMOVED:
                rows[i] = np.int64((word & ROW_MASK) - ONE)
                prefetch(row_ids, rows[i])
                break
            at = (at + ONE) & mask


@compiled
def advance(slots: Any, sizes: Any, row_ids: Any, salt: Any, ids: Any, rows: Any, mixed: Any, turn: Any) -> Any:
    """Prepares the search for ids, in groups: mixes group `turn`, and reads the slots for the group before it.

    A group is finished two turns after it was mixed. So whatever is read for it was asked for a turn before, and the
    processor waits for little. `rows` gets for a group that was read the rows that its ids have, unless another id has
    the same tag nearby; `mixed` has the mixed ids of `_TURNS` groups. Returns the begin and the end of the group that
    can be finished now, and its place in `mixed`.
    """
    begin = turn * _GROUP
    if begin < len(ids):
        end = min(begin + _GROUP, len(ids))
        mix_group(slots, sizes, salt, ids[begin:end], mixed[turn % _TURNS])
    begin -= _GROUP
    if 0 <= begin < len(ids):
        end = min(begin + _GROUP, len(ids))
        read_group(slots, sizes, row_ids, mixed[(turn - 1) % _TURNS], rows[begin:end])
    begin = max(begin - _GROUP, 0)
    return begin, min(begin + _GROUP, len(ids)) if turn >= 2 else 0, (turn - 2) % _TURNS


@compiled
def turns_of(count: Any) -> Any:
    """Turns that so many ids take."""
    return (count + _GROUP - 1) // _GROUP + 2


@compiled
def find(slots: Any, sizes: Any, row_ids: Any, salt: Any, ids: Any, rows: Any) -> None:
    """Writes the rows of ids, or -1."""
    mixed = np.empty((_TURNS, _GROUP), np.uint64)
    for turn in range(turns_of(len(ids))):
        begin, end, group = advance(slots, sizes, row_ids, salt, ids, rows, mixed, turn)
        for i in range(begin, end):
            if rows[i] < 0 or row_ids[rows[i]] != ids[i]:
                at = position_of(slots, sizes, row_ids, mixed[group][i - begin], ids[i])
                rows[i] = -1 if at < 0 else np.int64((slots[at] & ROW_MASK) - ONE)


@compiled
def rebuild(slots: Any, sizes: Any, used: Any, fills: Any, segment: Any) -> Any:
    """Makes room for one more id in a segment, and forgets its marks; False if the array is too small for that."""
    size = sizes[segment]
    base = size * (_SEGMENTS + segment)
    words = np.empty(used[segment], np.uint64)
    count = 0
    for i in range(base, base + size):
        if slots[i] != _EMPTY and slots[i] & ROW_MASK != REMOVED:
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
        at = home_of(size, words[i] >> TAG_SHIFT)
        while slots[base + np.int64(at)] != _EMPTY:
            at = (at + ONE) & mask
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
    """Writes the rows of ids from position `begin`, adding those that are missing. Returns where it stopped: `len(ids)`
    at the end, the position of an id for which there is no room, or -1 minus a position where the array of slots is too
    small."""
    mixed = np.empty((_TURNS, _GROUP), np.uint64)
    left, found = ids[begin:], rows[begin:]
    for turn in range(turns_of(len(left))):
        # What was read for a group may be old when it is finished: other groups add ids and move segments meanwhile. A
        # row whose id is right is right all the same, and every other id is searched for anew.
        first, end, group = advance(slots, sizes, row_ids, salt, left, found, mixed, turn)
        for i in range(begin + first, begin + end):
            if rows[i] >= 0 and row_ids[rows[i]] == ids[i]:
                continue
            word = mixed[group][i - begin - first]
            at = position_of(slots, sizes, row_ids, word, ids[i])
            if at >= 0:
                rows[i] = np.int64((slots[at] & ROW_MASK) - ONE)
                continue
            if counts[0] - counts[1] >= most:
                return i
            segment = np.int64(word >> SEGMENT_SHIFT)
            if used[segment] + 1 > sizes[segment] * fills[segment]:
                if not rebuild(slots, sizes, used, fills, segment):
                    return -1 - i
                at = position_of(slots, sizes, row_ids, word, ids[i])
            if counts[1] > 0:
                counts[1] -= 1
                row = free[counts[1]]
            else:
                if counts[0] >= len(row_ids):
                    return i
                row = counts[0]
                counts[0] += 1
            row_ids[row] = ids[i]
            slots[-1 - at] = tag_of(word) << TAG_SHIFT | (np.uint64(row) + ONE)
            used[segment] += 1
            rows[i] = row
            new[i] = True
    return len(ids)


@compiled
def remove(slots: Any, sizes: Any, row_ids: Any, free: Any, counts: Any, salt: Any, ids: Any, freed: Any) -> Any:
    """Removes ids and writes their rows. Returns how many there were."""
    count = 0
    for i in range(len(ids)):
        at = position_of(slots, sizes, row_ids, mixed_of(np.uint64(ids[i]) + salt), ids[i])
        if at >= 0:
            row = np.int64((slots[at] & ROW_MASK) - ONE)
            slots[at] = REMOVED
            free[counts[1]] = row
            counts[1] += 1
            freed[count] = row
            count += 1
    return count


# A map with an entry for each id


@compiled
def find_entries(entries: Any, ids: Any, rows: Any) -> Any:
    """Writes the rows of ids, or -1. Returns how many have none."""
    count = np.uint64(len(entries))
    missing: Any = 0
    for i in range(len(ids)):
        # A negative id is a large one here.
        row = np.int64(entries[ids[i]]) - 1 if np.uint64(ids[i]) < count else -1
        rows[i] = row
        missing += row < 0
    return missing


@compiled
def add_entries(
    entries: Any, row_ids: Any, free: Any, counts: Any, most: Any, ids: Any, rows: Any, new: Any, begin: Any
) -> Any:
    """Gives rows to those ids, from position `begin`, that have none. All are below the number of entries. Returns
    where it stopped: `len(ids)` at the end, or the position of an id for which there is no room."""
    for i in range(begin, len(ids)):
        if rows[i] >= 0:
            continue
        row = np.int64(entries[ids[i]]) - 1
        if row < 0:
            if counts[0] - counts[1] >= most:
                return i
            if counts[1] > 0:
                counts[1] -= 1
                row = free[counts[1]]
            else:
                if counts[0] >= len(row_ids):
                    return i
                row = counts[0]
                counts[0] += 1
            row_ids[row] = ids[i]
            entries[ids[i]] = row + 1
            new[i] = True
        rows[i] = row
    return len(ids)


@compiled
def remove_entries(entries: Any, free: Any, counts: Any, ids: Any, freed: Any) -> Any:
    """Removes ids and writes their rows. Returns how many there were."""
    most, count = np.uint64(len(entries)), 0
    for id in ids:
        if np.uint64(id) < most and entries[id] > 0:
            row = np.int64(entries[id]) - 1
            entries[id] = 0
            free[counts[1]] = row
            counts[1] += 1
            freed[count] = row
            count += 1
    return count
