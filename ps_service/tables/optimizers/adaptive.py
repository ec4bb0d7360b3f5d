"""Adagrad of rows, with one sum for each value or one for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ps_service.tables.optimizers.rule import Rates, RowRule, States, decay

if TYPE_CHECKING:
    from ps_wire.tables.options import Adagrad, RowWiseAdagrad


class AdagradRule(RowRule):
    """`Adagrad`: one sum of squares for each value."""

    def __init__(self, options: Adagrad, dim: int) -> None:
        super().__init__(options, {"sum": dim}, {"sum": options.initial_accumulator})

    def update(self, values: torch.Tensor, gradients: torch.Tensor, states: States, rates: Rates) -> None:
        decay(values, rates)
        sums = states["sum"].addcmul_(gradients, gradients)
        values.sub_(gradients / sums.sqrt().add_(self.options.eps) * rates.lr)


class RowWiseAdagradRule(RowRule):
    """`RowWiseAdagrad`: one sum of mean squares for each row."""

    def __init__(self, options: RowWiseAdagrad, _dim: int) -> None:
        super().__init__(options, {"sum": 1}, {"sum": options.initial_accumulator})

    def update(self, values: torch.Tensor, gradients: torch.Tensor, states: States, rates: Rates) -> None:
        decay(values, rates)
        sums = states["sum"].add_(gradients.square().mean(1, keepdim=True))
        values.sub_(gradients * (rates.lr / sums.sqrt().add_(self.options.eps)))
