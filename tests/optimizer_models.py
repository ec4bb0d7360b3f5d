"""Optimizers for the tests of training: they raise halfway, and they pause."""

from __future__ import annotations

from typing import Any

import torch
from torch import optim

from ps_service import hosted
from tests.autograd_models import PATIENCE, event


@hosted
class HalfWay(optim.Optimizer):
    """Changes parameters, state, options and itself one by one, and raises when it comes to a row of zeros."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                total = self.state[parameter].setdefault("total", torch.zeros_like(parameter))
                total.add_(parameter.grad)
                parameter.sub_(group["lr"] * total)
                if not parameter.grad.any():
                    raise ArithmeticError("a gradient of zeros only")


@hosted
class Pausing(optim.Optimizer):
    """Plain gradient descent that comes to a parameter, says so, and waits until it may go on."""

    def __init__(self, params: Any, lr: float, what: str, at: int = 0) -> None:
        super().__init__(params, {"lr": lr})
        self.begun, self.go = event(f"{what} has begun"), event(f"{what} may go on")
        self.at = at

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            if number == self.at:
                self.begun.set()
                if not self.go.wait(PATIENCE):
                    raise RuntimeError("this step was not released in time")
            if parameter.grad is not None:
                parameter.sub_(self.param_groups[0]["lr"] * parameter.grad)
