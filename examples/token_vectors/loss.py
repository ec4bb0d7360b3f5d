"""The loss of skip-gram with negative sampling."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def loss_of(centres: Tensor, others: Tensor, weights: Tensor) -> Tensor:
    """The mean over pairs of the log losses of a pair: one for what stands beside the centre, and of each negative.

    Args:
        centres: Rows of the centres, [n, dim].
        others: Rows of what stands beside them, and of negatives, [n, 1 + negatives, dim].
        weights: As in `Batch`.
    """
    logits = (others @ centres.unsqueeze(2)).squeeze(2)
    labels = logits.new_zeros(logits.shape)
    labels[:, 0] = 1
    total = functional.binary_cross_entropy_with_logits(logits, labels, weights, reduction="sum")
    return total / len(centres)
