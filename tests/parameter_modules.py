"""Hosted modules that write to their parameters, or mark them, in unusual ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ps_service import hosted, remote
from tests.odd_modules import SIZE


@hosted
class Exchanging(nn.Module):
    """Gives its parameters the memory of others in each forward, and computes with them.

    Args:
        way: What becomes of the parameters.
    """

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.a = nn.Parameter(torch.full((SIZE,), 1.0))
        self.b = nn.Parameter(torch.full((SIZE,), 2.0))
        self.c = nn.Parameter(torch.full((SIZE,), 3.0))
        self.kept = torch.full((SIZE,), 4.0)
        self.register_buffer("held", torch.full((SIZE,), 5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c = self.a, self.b, self.c
        if self.way == "swapped":
            a.data, b.data = b.data, a.data
        elif self.way == "turned round":
            a.data, b.data, c.data = b.data, c.data, a.data
        elif self.way == "passed on":
            a.data, b.data = b.data, b.data + 1
        elif self.way == "detached":
            with torch.no_grad():
                a.set_(b.detach()), b.set_(torch.ones(SIZE))
        elif self.way == "swapped with an attribute":
            a.data, self.kept.data = self.kept.data, a.data
        elif self.way == "shared":
            a.data = b.data
        elif self.way == "of an attribute":
            a.data = self.kept
        elif self.way == "of a buffer":
            a.data = self.held
        return a * x + b.square() * c


@hosted
class Calling(nn.Module):
    """Its class has a `__call__`, and a `forward` that another function wraps without its name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)
        self.register_forward_hook(lambda module, args, output: output + 1)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 3

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    forward = _run

    @remote
    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self(self(x))


@hosted
class IntegersFirst(nn.Module):
    """Its first parameter is of integers, which no optimizer changes."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([2]), requires_grad=False)
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.factor
