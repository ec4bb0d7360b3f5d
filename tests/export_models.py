"""Hosted modules whose state is odd."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ps_service import hosted, remote


@hosted
class WithBuffer(nn.Module):
    """It has a buffer of a dtype."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("buffer", torch.ones(2).to(getattr(torch, dtype)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@hosted
class WithState(nn.Module):
    """Its state has a tensor besides parameters, once there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.more: torch.Tensor | None = None

    def get_extra_state(self) -> torch.Tensor | None:
        return self.more

    def set_extra_state(self, state: torch.Tensor | None) -> None:
        self.more = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @remote
    def put(self, value: float) -> None:
        """Sets it."""
        self.more = torch.tensor([value])


@hosted
class WithoutState(nn.Module):
    """It does not give its state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def get_extra_state(self) -> Any:
        raise ValueError("there is none")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@hosted
class WithMoods(nn.Module):
    """It does not give its state for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.fails = False

    def get_extra_state(self) -> torch.Tensor:
        if self.fails:
            raise ValueError("there is none now")
        return torch.ones(1)

    def set_extra_state(self, state: torch.Tensor) -> None:
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @remote
    def put(self, fails: bool) -> None:
        """Sets whether it does."""
        self.fails = fails


@hosted
class WithClasses(nn.Module):
    """It gives four scores of each sample, and the numbers of the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 4)
        self.classes: torch.Tensor
        self.register_buffer("classes", torch.arange(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x), self.classes


@hosted
class WithStateAlone(nn.Module):
    """Its state is a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0.0

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor([self.number])

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.number = float(state[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @remote
    def put(self, number: float) -> None:
        """Sets it."""
        self.number = number
