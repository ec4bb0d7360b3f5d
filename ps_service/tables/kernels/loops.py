"""Loops over ids and rows, compiled by numba. Imported only where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps_service.tables.compiled import compiled
from ps_service.tables.kernels.prefetching import FAR_AHEAD, prefetch_row
from ps_wire.tables.hashing import FIRST, GOLDEN, SECOND

_FIRST, _SECOND, _GOLDEN = np.uint64(FIRST), np.uint64(SECOND), np.uint64(GOLDEN)
_S8, _S16, _S27, _S30, _S31, _S32 = (np.uint64(each) for each in (8, 16, 27, 30, 31, 32))
_LOW = np.uint64(0xFFFFFFFF)
_UNIT = np.float32(2.0**-24)


@compiled
def mixed_of(x: Any) -> Any:
    """`ps_wire.tables.hashing.mix` of one word."""
    x = (x ^ (x >> _S30)) * _FIRST
    x = (x ^ (x >> _S27)) * _SECOND
    return x ^ (x >> _S31)


@compiled
def number(ids: Any, places: Any, shift: Any, factor: Any, different: Any, counts: Any, numbers: Any) -> Any:
    """Numbers the different ids in the order in which they come, with a hash table of zeros `places` and a random odd
    `factor`, so that nobody can choose ids that collide. `different` gets the ids, `counts` how often each comes, and
    `numbers` the number of each position's id. Returns how many differ."""
    mask = len(places) - 1
    count = 0
    for i in range(len(ids)):
        id = ids[i]
        product = np.uint64(id) * factor
        at = np.int64((product ^ product >> _S32) * _GOLDEN >> shift)
        while True:
            found = places[at]
            if found == 0:
                places[at] = count + 1
                different[count] = id
                counts[count] = 1
                numbers[i] = count
                count += 1
                break
            if different[found - 1] == id:
                counts[found - 1] += 1
                numbers[i] = found - 1
                break
            at = (at + 1) & mask
    return count


@compiled
def place(counts: Any, numbers: Any, offsets: Any, factors: Any, begins: Any, sources: Any, scales: Any) -> None:
    """Sorts positions by the number of their id, keeping their order: a counting sort.

    `counts` has how many positions each of m numbers has, and is overwritten. `offsets` are empty if each position is a
    bag of its own, and `factors` for 1. `begins` [m + 1] gets where the positions of each number begin, `sources` [n]
    the bags of the positions, or the positions, and `scales` the factors, if there are any.
    """
    total = 0
    for i in range(len(counts)):
        begins[i] = total
        total += counts[i]
        counts[i] = begins[i]
    begins[len(counts)] = total
    bag = 0
    for i in range(len(numbers)):
        while bag + 1 < len(offsets) and offsets[bag + 1] <= i:
            bag += 1
        at = counts[numbers[i]]
        counts[numbers[i]] += 1
        sources[at] = bag if len(offsets) > 0 else i
        if len(factors) > 0:
            scales[at] = factors[i]


@compiled
def gather(values: Any, numbers: Any, found: Any) -> None:
    """Copies rows by number."""
    for i in range(len(numbers)):
        if i + FAR_AHEAD < len(numbers):
            prefetch_row(values, numbers[i + FAR_AHEAD])
        row, copy = values[numbers[i]], found[i]
        for k in range(len(copy)):
            copy[k] = row[k]


@compiled
def draw(keys_salt: Any, ids: Any, quantiles: Any, low: Any, scale: Any, numbers: Any, values: Any) -> None:
    """Writes the first values of rows: `quantiles` of 16 bits, or if that is empty, even numbers of 24 bits."""
    width = values.shape[1]
    for i in range(len(ids)):
        key = mixed_of(np.uint64(ids[i]) + keys_salt)
        row = values[numbers[i]]
        for j in range(0, width, 2):
            key += _GOLDEN
            word = mixed_of(key)
            for k in range(2):
                if j + k < width:
                    bits = word & _LOW if k == 0 else word >> _S32
                    if len(quantiles) > 0:
                        row[j + k] = quantiles[np.int64(bits >> _S16)] * scale
                    else:
                        row[j + k] = np.float32(bits >> _S8) * _UNIT * scale + low
