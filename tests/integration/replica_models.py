"""Modules for the tests of replicas, in the shapes that models have: tied, sparse, normalized, with odd strides."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations

from ps_service import hosted, remote


@hosted
class Net(nn.Module):
    """Convolution with channels last, batch norm, and a head; the second part may be frozen."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 5)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.norm(self.conv(x)).relu().mean((2, 3))) * self.scale
        return found


@hosted
class Parametrized(nn.Module):
    """Layers whose weights are computed from parameters in every forward, and a parameter that no forward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(6, 6))
        self.second = parametrizations.spectral_norm(nn.Linear(6, 4))
        self.third = parametrizations.orthogonal(nn.Linear(4, 4))
        self.odd = nn.Parameter(torch.randn(4, 4).t())
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.complex = nn.Parameter(torch.randn(4, 2, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.third(self.second(self.first(x))) @ self.odd
        return (hidden.to(torch.complex64) @ self.complex).abs()


@hosted
class Words(nn.Module):
    """An embedding with sparse gradients, whose tied head shares a dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(50, 8, sparse=True)
        self.inner = nn.Linear(8, 8, bias=False)
        self.outer = nn.Linear(8, 8, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.outer(self.inner(self.rows(x)).tanh())
        return found


@hosted
class ToyModel(nn.Module):
    """The model of torch's tutorial on DistributedDataParallel."""

    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net2(self.relu(self.net1(x)))
        return found


@hosted
class Wide(nn.Module):
    """A few layers of the same width."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found

    @remote
    def grow(self, x: torch.Tensor) -> torch.Tensor:
        """Writes to the first parameter in place, after a forward."""
        found: torch.Tensor = self(x)
        with torch.no_grad():
            next(self.parameters()).mul_(2)
        return found
