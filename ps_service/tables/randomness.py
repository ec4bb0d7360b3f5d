"""Random numbers that depend on a seed, an id, a count and a column, and the first values of rows, which are such."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from ps_wire.tables.hashing import GOLDEN, mix, mix_one
from ps_wire.tables.options import Constant, Initialisation, Normal, Uniform

INITIAL: Final = 1
ROUNDING: Final = 2
ADMISSION: Final = 3
"""Purposes. The numbers of one have nothing to do with those of another."""

_LEVELS: Final = 1 << 16


def random_bits(
    seed: int, purpose: int, ids: npt.NDArray[np.int64], columns: int, counts: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.uint32]:
    """32 random bits for each id and column, [n, columns]: SplitMix64, started at a mix of seed, purpose, id and count.
    With `counts`, another number for each id, [n], the numbers differ each time."""
    keys = mix(ids, mix_one(seed, purpose))
    if counts is not None:
        keys = mix(keys + counts.astype(np.uint64) * np.uint64(GOLDEN))
    words = (columns + 1) // 2
    steps = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    return mix(keys[:, None] + steps).view(np.uint32)[:, :columns]


def uniform(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """Numbers from 0 to below 1, from 24 of the bits each."""
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


@cache
def normal_quantiles() -> npt.NDArray[np.float32]:
    """The quantiles in the middle of 65,536 equal shares. A table, so that every implementation draws the same."""
    inverse = NormalDist().inv_cdf
    upper = np.array([inverse((_LEVELS // 2 + i + 0.5) / _LEVELS) for i in range(_LEVELS // 2)], np.float32)
    return np.concatenate([-upper[::-1], upper])


def initial_rows(init: Initialisation, seed: int, ids: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """The first values of the rows of ids, [n, dim], rounded to nearest. They depend on the arguments only, so every
    owner and every restart computes the same."""
    if isinstance(init, Normal | Uniform):
        bits = random_bits(seed, INITIAL, ids.numpy(), dim)
        if isinstance(init, Normal):
            values = normal_quantiles()[bits >> np.uint32(16)] * np.float32(init.std)
        else:
            values = uniform(bits) * np.float32(init.high - init.low) + np.float32(init.low)
        return torch.from_numpy(values).to(dtype)
    return torch.full((len(ids), dim), init.value if isinstance(init, Constant) else 0.0, dtype=dtype, device="cpu")
