"""The area under the ROC curve."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def auc(labels: Tensor, scores: Tensor) -> float:
    """The probability that a random click has a higher score than a random impression without one; ties count half.

    It is exact, from the sum of ranks (H. B. Mann, D. R. Whitney, Annals of Mathematical Statistics 18, 1947).

    Args:
        labels: 1 or 0, [n].
        scores: Floating point numbers [n].

    Raises:
        ValueError: All labels are equal, or a score is NaN.
    """
    if scores.isnan().any():
        raise ValueError("a score is NaN")
    clicked = labels.numpy() > 0
    clicks, others = int(clicked.sum()), int((~clicked).sum())
    if not clicks or not others:
        raise ValueError("the AUC needs clicks as well as impressions without a click")
    _, place, counts = np.unique(scores.numpy(), return_inverse=True, return_counts=True)
    # Equal scores share the mean of their ranks.
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[place][clicked].sum() - clicks * (clicks + 1) / 2) / (clicks * others))
