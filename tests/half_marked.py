"""Classes on which a mark was forgotten."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ps_service import hosted, remote


@hosted
class Net(nn.Module):
    """Its accuracy is not marked."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(3, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y

    def accuracy(self, x: torch.Tensor, y: torch.Tensor) -> float:
        return (self(x).argmax(-1) == y).double().mean().item()

    def extra_repr(self) -> str:
        return "a method of every module"


class NotHosted:
    """Its method is marked, and the class is not."""

    @remote
    def go(self) -> int:
        return 1


class Base:
    """A base of a hosted class, which needs no mark."""

    @remote
    def name(self) -> str:
        return type(self).__name__


@hosted
class Derived(Base):
    """It has the methods of the base."""


def not_remote(x: Any) -> Any:
    return x
