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
def unique(ids: Any, places: Any, shift: Any, salt: Any, different: Any, inverse: Any) -> Any:
    """The different ids in the order in which they come, with a hash table of zeros `places`.

    Returns:
        How many differ.
    """
    mask = len(places) - 1
    count = 0
    for i in range(len(ids)):
        at = np.int64(mixed_of(np.uint64(ids[i]) + salt) >> shift)
        while True:
            found = places[at]
            if found == 0:
                count += 1
                places[at] = count
                different[count - 1] = ids[i]
                inverse[i] = count - 1
                break
            if different[found - 1] == ids[i]:
                inverse[i] = found - 1
                break
            at = (at + 1) & mask
    return count


@compiled
def group(inverse: Any, begins: Any, order: Any) -> None:
    """Sorts positions by their id, keeping their order: a counting sort.

    Args:
        inverse: The number of each position's id.
        begins: Zeros [m + 1]. Gets where the positions of each id begin.
        order: [n]. Gets the positions.
    """
    for each in inverse:
        begins[each + 1] += 1
    for i in range(1, len(begins)):
        begins[i] += begins[i - 1]
    nexts = begins[:-1].copy()
    for i in range(len(inverse)):
        order[nexts[inverse[i]]] = i
        nexts[inverse[i]] += 1


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
