"""Sums of rows by target, in the order of the rows, without a copy of all rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional


class Grouped(NamedTuple):
    """Positions, grouped by target. `targets` are the different targets, ascending, int64 [m]. `order` has all
    positions, int64 [n]: those of the first target, in ascending order, then those of the next. `offsets` say where
    those of each target begin in it, int64 [m]."""

    targets: torch.Tensor
    order: torch.Tensor
    offsets: torch.Tensor


def grouped(targets: torch.Tensor) -> Grouped:
    """Groups positions by their targets, int64 [n], none negative."""
    given = targets.numpy()
    if not len(given):
        return Grouped(targets, targets, targets)
    bits = len(given).bit_length()
    if int(given.max()) >> (62 - bits):
        order = given.argsort(kind="stable")
        ordered = given[order]
    else:
        # Target and position in one number: numpy sorts numbers much faster than it finds their order.
        keys = (given << np.int64(bits)) | np.arange(len(given))
        keys.sort()
        order, ordered = keys & np.int64((1 << bits) - 1), keys >> np.int64(bits)
    begins = np.empty(len(given), np.bool_)
    begins[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    offsets = begins.nonzero()[0]
    return Grouped(torch.from_numpy(ordered[offsets]), torch.from_numpy(order), torch.from_numpy(offsets))


def sum_by(groups: Grouped, values: torch.Tensor) -> torch.Tensor:
    """The sum, for each target, of the rows of its positions, [n, dim], added in the order of the positions, [m, dim].
    Values in float64 are added as such, and all others in float32."""
    wide = torch.float64 if values.dtype is torch.float64 else torch.float32
    return functional.embedding_bag(groups.order, values.to(wide), groups.offsets, mode="sum")
