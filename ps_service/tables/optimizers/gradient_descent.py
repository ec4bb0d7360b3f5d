"""Stochastic gradient descent of rows, with or without momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ps_service.tables.optimizers.rule import Rates, RowRule, States, decay

if TYPE_CHECKING:
    from ps_wire.tables.options import SGD


class GradientDescent(RowRule):
    """`SGD`: with momentum, one velocity for each value."""

    def __init__(self, options: SGD, dim: int) -> None:
        super().__init__(options, {"velocity": dim} if options.momentum else {})

    def update(self, values: torch.Tensor, gradients: torch.Tensor, states: States, rates: Rates) -> None:
        decay(values, rates)
        if self.widths:
            gradients = states["velocity"].mul_(self.options.momentum).add_(gradients)
        values.sub_(gradients * rates.lr)
