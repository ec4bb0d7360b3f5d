"""Slots: every id of a table belongs to one of 16,384, and every slot to one owner."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from ps_wire.tables.hashing import FIRST, SECOND

SLOTS: Final = 16_384
"""Number of slots of a table, the same for every table and number of owners."""

_SHIFT: Final = np.uint64(64 - (SLOTS.bit_length() - 1))
_S30, _S27 = np.uint64(30), np.uint64(27)
_FIRST, _SECOND = np.uint64(FIRST), np.uint64(SECOND)


def slots_of(ids: torch.Tensor) -> torch.Tensor:
    """The slot of each id: the highest 14 bits of its mix (`ps_wire.tables.hashing.mix`).

    Args:
        ids: int64 on the CPU, of any shape and any values.

    Returns:
        int64 of the same shape, from 0 to `SLOTS - 1`, so that it indexes a tensor of owners directly.
    """
    words = ids.reshape(-1).numpy().view(np.uint64)
    # The same steps as in `mix`, with one array for what is shifted. Its last step changes only the lower bits.
    mixed = words >> _S30
    shifted = np.empty_like(mixed)
    mixed ^= words
    mixed *= _FIRST
    mixed ^= np.right_shift(mixed, _S27, out=shifted)
    mixed *= _SECOND
    mixed >>= _SHIFT
    return torch.from_numpy(mixed.view(np.int64)).view(ids.shape)
