"""Hosted classes whose code changes what it is called on, and one that takes its time."""

from __future__ import annotations

import threading
from typing import ClassVar

import torch
from torch import nn

from ps_service import hosted


@hosted
class Counting(nn.Module):
    """It counts its calls, in a buffer and in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.calls += 1
        y: torch.Tensor = self.layer(x) * self.count * self.calls
        return y


@hosted
class Writing(nn.Module):
    """It writes to its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer.weight.data.mul_(2)
        y: torch.Tensor = self.layer(x)
        return y


@hosted
class WritingLate(nn.Module):
    """It writes to its parameters where its input is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x < 0).any():
            with torch.no_grad():
                self.layer.weight.mul_(2)
        y: torch.Tensor = self.layer(x)
        return y


@hosted
class Locking(nn.Module):
    """It has a part with a lock, which cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 2)])
        self.layers[0].guard = threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers[0](x)
        return y


@hosted
class Drawing(nn.Module):
    """It has a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y + torch.rand(2, generator=self.generator)


@hosted
class Waiting(nn.Module):
    """Its statistics are in use until it may go on."""

    began: ClassVar[threading.Event] = threading.Event()
    ends: ClassVar[threading.Event] = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.calls = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1
        self.began.set()
        self.ends.wait(60)
        y: torch.Tensor = self.layer(x)
        return y
