"""Stochastic rounding of updated rows to 16 bits."""

from __future__ import annotations

import torch


def round_stochastically(values: torch.Tensor, draws: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounds each value to one of its two neighbours, so that the expectation of the result is the value.

    The nearer neighbour is the more likely one (S. Gupta et al., "Deep Learning with Limited Numerical Precision", ICML
    2015). Updates smaller than half of the distance of neighbours are not lost, as they are when rounded to nearest.

    Args:
        values: float32.
        draws: float32 of the same shape, evenly distributed from 0 to below 1.
        dtype: float16 or bfloat16. Values beyond its range become infinite, as when rounded to the nearest.
    """
    nearest = values.to(dtype)
    error = values - nearest.float()
    bits = nearest.view(torch.int16)
    # The next number away from zero has the next bit pattern, the next one towards zero that before. The neighbour of
    # zero itself is the smallest number with the sign of the error.
    outward = (error > 0) == (values > 0)
    neighbour_bits = torch.where(outward, bits + 1, bits - 1)
    smallest = torch.where(error > 0, 1, -0x7FFF).to(torch.int16)
    neighbour = torch.where(nearest == 0, smallest, neighbour_bits).view(dtype)
    distance = (neighbour.float() - nearest.float()).abs()
    taken = (draws * distance < error.abs()) & nearest.isfinite() & neighbour.isfinite()
    return torch.where(taken, neighbour, nearest)
