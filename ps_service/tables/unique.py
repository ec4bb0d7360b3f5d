"""Different ids, and the sums of gradients of equal ones."""

from __future__ import annotations

import torch


def unique(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The different ids, and for each id its position among them.

    Args:
        ids: int64 [n].

    Returns:
        int64 [m] in an order of the implementation, and int64 [n] with `different[inverse] == ids`.
    """
    different, inverse = torch.unique(ids, return_inverse=True)
    return different, inverse


def sum_equal(inverse: torch.Tensor, count: int, gradients: torch.Tensor) -> torch.Tensor:
    """The sum of the gradients of each different id, in the order in which they are given.

    Args:
        inverse: int64 [n], from `unique`.
        count: m, how many ids differ.
        gradients: float32 [n, dim].

    Returns:
        float32 [m, dim].
    """
    if count == len(inverse):
        summed = torch.empty_like(gradients)
        summed[inverse] = gradients
        return summed
    return gradients.new_zeros(count, gradients.shape[1]).index_add_(0, inverse, gradients)
