"""The dense parts of GMF and NeuMF, and their loss."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from ps_service import hosted


@hosted
class GMF(nn.Module):
    """Generalized matrix factorization: a weighted product of the rows of a user and an item.

    X. He et al., "Neural Collaborative Filtering", WWW 2017, section 3.2.

    Args:
        factors: Numbers in a row.
    """

    def __init__(self, factors: int) -> None:
        super().__init__()
        self.head = nn.Linear(factors, 1)

    @staticmethod
    def dim(factors: int) -> int:
        """Numbers in the rows of users and of items."""
        return factors

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """The log-odds of an interaction, [n], for rows [n, dim]."""
        logits: Tensor = self.head(users * items).squeeze(-1)
        return logits


@hosted
class NeuMF(nn.Module):
    """GMF and an MLP, which have parts of the rows each and share the last layer.

    X. He et al., "Neural Collaborative Filtering", WWW 2017, section 3.4, with a tower of three layers that halve.

    Args:
        factors: Numbers that each of both gives to the last layer. GMF has as many of a row, and the MLP four times
            as many.
    """

    def __init__(self, factors: int) -> None:
        super().__init__()
        self.factors = factors
        layers: list[nn.Module] = []
        for width in (8 * factors, 4 * factors, 2 * factors):
            layers += [nn.Linear(width, width // 2), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.head = nn.Linear(2 * factors, 1)

    @staticmethod
    def dim(factors: int) -> int:
        """Numbers in the rows of users and of items."""
        return 5 * factors

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """The log-odds of an interaction, [n], for rows [n, dim]."""
        product = users[:, : self.factors] * items[:, : self.factors]
        deep = self.mlp(torch.cat([users[:, self.factors :], items[:, self.factors :]], dim=1))
        logits: Tensor = self.head(torch.cat([product, deep], dim=1)).squeeze(-1)
        return logits


MODELS: Final[dict[str, type[GMF] | type[NeuMF]]] = {"gmf": GMF, "neumf": NeuMF}


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean log loss."""
    return functional.binary_cross_entropy_with_logits(logits, labels)
