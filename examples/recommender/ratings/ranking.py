"""How high the right item ranks."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

TOP: Final = 10
"""Length of the list that is judged."""


class Ranked(NamedTuple):
    """Means over the tests.

    Attributes:
        hits: HR@10: how often the right item is among the first ten.
        gain: NDCG@10: the same, where place `p` counts 1 / log2(1 + p).
    """

    hits: float
    gain: float


def rank(scores: Tensor) -> Ranked:
    """Judges scores of items.

    An item with the same score as the right one is before it, so that equal scores are no hits.

    Args:
        scores: Floating point numbers, [tests, items]. The first item of each test is the right one.

    Raises:
        ValueError: A score is NaN.
    """
    if scores.isnan().any():
        raise ValueError("a score is NaN")
    before = (scores[:, 1:] >= scores[:, :1]).sum(1)
    hits = before < TOP
    gains = torch.where(hits, 1 / torch.log2(before + 2.0), 0.0)
    return Ranked(hits.double().mean().item(), gains.double().mean().item())
