"""What the owners of `test_context_bytes.py` host."""

from __future__ import annotations

import torch
from torch import nn

from ps_service import RRef, hosted, remote


@hosted
class Table:
    """Leaves results on the owner."""

    @remote
    def zeros(self, count: int) -> torch.Tensor:
        return torch.zeros(count)

    @remote
    def left(self, count: int) -> RRef:
        return RRef(torch.zeros(count))


@hosted
class Squares(nn.Module):
    """Saves a result of its own, several times."""

    def __init__(self, raises: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("scale", torch.ones(1000))

    def forward(self, x: torch.Tensor, raises: bool = False) -> torch.Tensor:
        y = (x * self.weight) ** 2
        if raises:
            raise ValueError("after something was saved")
        return y.exp() + y.sigmoid()


@hosted
class Weighting(nn.Module):
    """Saves as many elements as the value behind a handle has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: RRef) -> torch.Tensor:
        found: torch.Tensor = ((x.local_value() + 1) * self.weight).sum()
        return found


@remote
def grown(x: torch.Tensor) -> torch.Tensor:
    """Borrows no module. Its graph keeps the argument and the result."""
    return (x * x).exp()
