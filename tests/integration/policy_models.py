"""Modules for the tests of policies: sparse gradients, and parameters of several dtypes."""

from __future__ import annotations

import torch
from torch import nn

from ps_service import hosted


@hosted
class Bag(nn.Module):
    """An embedding bag whose gradient is sparse, and a dense layer."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(30, 4, mode="sum", sparse=sparse)
        self.head = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.rows(ids))
        return found


@hosted
class Mixed(nn.Module):
    """A layer of each of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=dtype) for dtype in dtypes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for layer in self.layers:
            total = total + layer(x.to(layer.weight.dtype)).double().sum()
        return total
