"""What the owners of the crash test host."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ps_service import hosted, remote

MODULE = __name__


@hosted
class Deep(nn.Module):
    """A network with running statistics, and with dropout that draws from torch's generator if it is to."""

    def __init__(self, drops: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.first = nn.Linear(4, 8)
        self.dropout = nn.Dropout(0.5 if drops else 0.0)
        self.second = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(torch.relu(self.first(self.norm(x)))))

    @remote
    def clamp(self, most: float) -> None:
        """Writes to the parameters."""
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.clamp_(-most, most)


@hosted
class Ledger:
    """An object that is no module. Its sum depends on the order of what is added."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0

    @remote
    def add(self, number: int) -> int:
        """Adds a number; returns how many were added."""
        self.count += 1
        self.sum = (self.sum * 31 + number) % (1 << 61)
        return self.count

    @remote
    def get(self) -> list[int]:
        """How many were added, and their sum."""
        return [self.count, self.sum]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "sum": self.sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.sum = state["count"], state["sum"]


@remote
def generator() -> torch.Tensor:
    """The state of torch's random generator."""
    return torch.get_rng_state()
