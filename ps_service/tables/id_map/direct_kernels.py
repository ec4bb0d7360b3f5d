"""The loops of a map with an entry for each id, compiled by numba. Imported only where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps_service.tables.compiled import compiled


@compiled
def find(entries: Any, ids: Any, rows: Any) -> Any:
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
def add(
    entries: Any, row_ids: Any, free: Any, counts: Any, most: Any, ids: Any, rows: Any, new: Any, begin: Any
) -> Any:
    """Gives rows to those of some ids, from position `begin`, that have none. All are below the number of entries.

    Returns where it stopped: `len(ids)` at the end, or the position of an id for which there is no room.
    """
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
def remove(entries: Any, free: Any, counts: Any, ids: Any, freed: Any) -> Any:
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
