"""Functions of autograd that are written in Python, as programs and hosted code have them."""

from __future__ import annotations

from typing import Any

import torch


class Doubled(torch.autograd.Function):
    """Doubles a tensor, and its gradient. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


class FailingBackward(torch.autograd.Function):
    """Returns a copy of a tensor; its backward raises ArithmeticError."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("this backward is broken")


class NoGradient(torch.autograd.Function):
    """Returns a copy of a tensor; its backward returns no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None
