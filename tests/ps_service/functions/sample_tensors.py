"""Small tensors to call functions of torch with."""

from __future__ import annotations

import torch
from torch import Tensor


def floats(*shape: int) -> Tensor:
    """Floating-point numbers in (0, 1)."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1


def ints(high: int, *shape: int) -> Tensor:
    """Integers in [0, high)."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


def bools(*shape: int) -> Tensor:
    """Truth values."""
    return floats(*shape) > 0.5


def coo() -> Tensor:
    """A sparse tensor of shape (4, 4)."""
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 3], [2, 0, 3]]), floats(3), (4, 4), check_invariants=True)


def spd() -> Tensor:
    """A matrix that can be factorized."""
    a = floats(4, 4)
    return a @ a.T + torch.eye(4)
