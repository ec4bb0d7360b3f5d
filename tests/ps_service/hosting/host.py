"""A module of which tests set whatever they like, and copies of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ps_service.hosting.bound_copy_pool import BoundCopies


class Host(nn.Module):
    """A module of which tests set whatever they like."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.layer = nn.Linear(2, 2)
        self.calls = 0

    def method(self) -> torch.Tensor:
        return self.weight

    def note(self, module: nn.Module, *given: Any) -> None:
        self.calls += 1

    def double(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 2


@contextmanager
def bound(pool: BoundCopies, module: nn.Module, training: bool | None = True) -> Iterator[Any]:
    """A bound copy of the module."""
    parameters = list(module.parameters())
    leaves = [parameter.data.requires_grad_(parameter.requires_grad) for parameter in parameters]
    bound_copy = pool.lend(training, parameters, leaves)
    try:
        yield bound_copy.module
    finally:
        assert pool.take_back(training, bound_copy).failed is None
