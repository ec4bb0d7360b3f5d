"""Clicks as tensors."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ps_wire.tables.hashing import mix

COUNTS: Final = 13
"""Features that are integers."""

CATEGORIES: Final = 26
"""Features that are one of many values."""


class Clicks(NamedTuple):
    """Some impressions of advertisements, and which of them were clicked.

    Attributes:
        labels: 1 for a click and 0 for none, float32 [n].
        dense: The integer features after `squash`, float32 [n, 13].
        ids: An id for each categorical feature, int64 [n, 26]. Equal ids of different features mean nothing.
    """

    labels: Tensor
    dense: Tensor
    ids: Tensor


def make_clicks(labels: NDArray[np.int64], counts: NDArray[np.int64], values: NDArray[np.int64]) -> Clicks:
    """Clicks from what stands in a file.

    Args:
        labels: 0 or 1, [n].
        counts: The integer features, [n, 13]. Zero for a missing one.
        values: The categorical features, [n, 26], from 0 to 2^32 - 1. -1 for a missing one.
    """
    return Clicks(
        torch.from_numpy(labels.astype(np.float32)),
        squash(counts),
        torch.from_numpy(mix(values + 1).view(np.int64)),
    )


def squash(counts: NDArray[np.int64]) -> Tensor:
    """The logarithm of 1 + x, and zero for what is negative: how DLRM takes the integers of Criteo's data."""
    return torch.from_numpy(np.log1p(np.maximum(counts, 0)).astype(np.float32))
