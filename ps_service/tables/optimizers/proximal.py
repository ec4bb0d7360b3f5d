"""FTRL-Proximal of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ps_service.tables.optimizers.rule import Rates, RowRule, States

if TYPE_CHECKING:
    from ps_wire.tables.options import FTRL


class ProximalRule(RowRule):
    """`FTRL`: the paper's z and n for each value. Algorithm 1 of the paper."""

    def __init__(self, options: FTRL, dim: int) -> None:
        super().__init__(options, {"linear": dim, "sum": dim})

    def update(self, values: torch.Tensor, gradients: torch.Tensor, states: States, rates: Rates) -> None:
        linear, sums = states["linear"], states["sum"]
        before = sums.sqrt()
        root = sums.addcmul_(gradients, gradients).sqrt()
        linear.add_(gradients).sub_((root - before) / rates.lr * values)
        shrunk = linear.sign() * self.options.l1 - linear
        values.copy_(shrunk / ((self.options.beta + root) / rates.lr + self.options.l2))
        values.masked_fill_(linear.abs() <= self.options.l1, 0.0)
