"""Bags: rows that are pooled into one, and the gradients of the rows."""

from __future__ import annotations

import torch


def bag_of_each(offsets: torch.Tensor, count: int) -> torch.Tensor:
    """The bag of each of `count` positions, int64 [count]."""
    ends = torch.cat([offsets[1:], offsets.new_tensor([count])])
    return torch.repeat_interleave(torch.arange(len(offsets)), ends - offsets, output_size=count)


def scales_of(offsets: torch.Tensor, count: int, mode: str, weights: torch.Tensor | None) -> torch.Tensor | None:
    """Which part of its bag's gradient the row at each position gets.

    Args:
        offsets: Where each bag begins, int64 [bags].
        count: Number of positions.
        mode: "sum" or "mean".
        weights: float32 [count], with "sum" only.

    Returns:
        Factors, float32 [count], or None for 1.
    """
    if mode == "mean":
        sizes = torch.diff(offsets, append=offsets.new_tensor([count])).clamp_(min=1)
        return sizes.float().reciprocal_()[bag_of_each(offsets, count)]
    return weights


def weight_gradients(rows: torch.Tensor, gradients: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The gradients of per-sample weights: the product of each position's row with its bag's gradient.

    Args:
        rows: The rows that were pooled, [n, dim].
        gradients: [bags, dim].
        offsets: int64 [bags].

    Returns:
        float32 [n].
    """
    each = gradients.float().index_select(0, bag_of_each(offsets, len(rows)))
    return (rows.float() * each).sum(1)
