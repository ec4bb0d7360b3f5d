"""The dense part of a DLRM, and its loss."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.recommender.clicks import CATEGORIES, COUNTS
from ps_service import hosted

DIM: Final = 16
"""Numbers in a row of a table."""


@hosted
class Dense(nn.Module):
    """All of a DLRM but its tables: bottom MLP, dot interaction, top MLP. 57,361 parameters.

    M. Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019.
    """

    def __init__(self) -> None:
        super().__init__()
        vectors = CATEGORIES + 1
        self.bottom = nn.Sequential(nn.Linear(COUNTS, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(DIM + vectors * (vectors - 1) // 2, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """The log-odds of clicks, [n].

        Args:
            dense: The integer features, [n, 13].
            rows: The row of each categorical feature, [n, 26, 16].
        """
        below = self.bottom(dense)
        vectors = torch.cat([below.unsqueeze(1), rows], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        crossed = products[:, self.pairs[0], self.pairs[1]]
        logits: Tensor = self.top(torch.cat([below, crossed], dim=1)).squeeze(1)
        return logits


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean log loss."""
    return functional.binary_cross_entropy_with_logits(logits, labels)
