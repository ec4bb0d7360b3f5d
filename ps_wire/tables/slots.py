"""Slots: every id of a table belongs to one of 16,384, and every slot to one owner."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from ps_wire.tables.hashing import mix

SLOTS: Final = 16_384
"""Number of slots of a table, the same for every table and number of owners."""

_SHIFT: Final = np.uint64(64 - (SLOTS.bit_length() - 1))


def slots_of(ids: torch.Tensor) -> torch.Tensor:
    """The slot of each id: the highest 14 bits of its mix (`ps_wire.tables.hashing.mix`).

    Args:
        ids: int64 on the CPU, of any shape and any values.

    Returns:
        int64 of the same shape, from 0 to `SLOTS - 1`, so that it indexes a tensor of owners directly.
    """
    return torch.from_numpy((mix(ids.numpy()) >> _SHIFT).view(np.int64)).view(ids.shape)
