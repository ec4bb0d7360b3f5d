"""The values that new rows begin with."""

from __future__ import annotations

import numpy as np
import torch

from ps_service.tables.randomness import INITIAL, normal, random_bits, uniform
from ps_wire.tables.options import Constant, Initialisation, Normal, Uniform


def initial_rows(init: Initialisation, seed: int, ids: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """The first values of the rows of ids, [n, dim], rounded to nearest.

    They depend on the arguments only, so every owner and every restart computes the same.
    """
    if isinstance(init, Normal | Uniform):
        bits = random_bits(seed, INITIAL, ids.numpy(), dim)
        if isinstance(init, Normal):
            values = normal(bits) * np.float32(init.std)
        else:
            values = uniform(bits) * np.float32(init.high - init.low) + np.float32(init.low)
        return torch.from_numpy(values).to(dtype)
    return torch.full((len(ids), dim), init.value if isinstance(init, Constant) else 0.0, dtype=dtype)
