"""Hosted modules that write to their parameters, or mark them, in unusual ways."""

from __future__ import annotations

import copy
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


class Scaled(nn.Parameter):
    """A parameter with a class of its own."""

    def scaled(self) -> torch.Tensor:
        return self * 2


@hosted
class Marked(nn.Module):
    """Puts attributes on its parameters, and reads them.

    Args:
        way: What each forward does to them.
    """

    def __init__(self, way: str = "") -> None:
        super().__init__()
        self.way = way
        self.layer = nn.Linear(SIZE, SIZE)
        self.layer.weight.gain = 5.0
        self.layer.weight.mask = torch.ones(SIZE)
        self.layer.weight.calls = 0
        self.layer.weight.total = torch.zeros(())
        # Small, so that three steps do not lead to infinite numbers.
        self.factor = Scaled(torch.full((SIZE,), 0.05))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        y = self.layer(x) * getattr(weight, "gain", 1.0) * weight.mask * self.factor.scaled()
        if self.way == "counted":
            weight.calls += 1
            y = y * weight.calls
        elif self.way == "added":
            weight.total += 1
            y = y + weight.total
        elif self.way == "set":
            y = y * getattr(bias, "note", 3.0)
            bias.note = 2.0
        elif self.way == "removed":
            if hasattr(weight, "gain"):
                del weight.gain
        elif self.way == "mean":
            y = y + getattr(bias, "mean_seen", torch.zeros(())).detach()
            bias.mean_seen = y.mean()
        elif self.way == "module":
            weight.owner = [self]
        elif self.way == "alias":
            weight.kept = bias.detach()
        elif self.way == "parameter made":
            y = y + nn.functional.linear(x, nn.Parameter(weight))
        elif self.way == "parameter of a copy":
            y = y + nn.functional.linear(x, nn.Parameter(weight.detach()))
        elif self.way == "copied":
            y = y + copy.deepcopy(self.layer)(x)
        assert isinstance(self.factor, Scaled) and isinstance(weight, nn.Parameter)
        return y


@hosted
class Added(nn.Module):
    """Adds two parameters to its input; torch hands both the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(SIZE)), nn.Parameter(torch.zeros(SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.a + self.b
