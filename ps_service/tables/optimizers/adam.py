"""Adam of rows, with a second moment for each value or one for each row."""

from __future__ import annotations

import torch

from ps_service.tables.optimizers.rule import Rates, RowRule, States, decay
from ps_wire.tables.options import LazyAdam, PartialRowWiseAdam


class AdamRule(RowRule):
    """`LazyAdam` and `PartialRowWiseAdam`. The bias of a row's moments is corrected for its own number of updates."""

    def __init__(self, options: LazyAdam | PartialRowWiseAdam, dim: int) -> None:
        self._row_wise = isinstance(options, PartialRowWiseAdam)
        super().__init__(options, {"moment": dim, "square": 1 if self._row_wise else dim, "steps": 1})

    def update(self, values: torch.Tensor, gradients: torch.Tensor, states: States, rates: Rates) -> None:
        decay(values, rates)
        first, second = self.options.betas
        steps = states["steps"].add_(1)
        moment = states["moment"].lerp_(gradients, 1 - first)
        squares = gradients.square()
        if self._row_wise:
            squares = squares.mean(1, keepdim=True)
        square = states["square"].mul_(second).add_(squares, alpha=1 - second)
        # In float64, because 1 - beta^t of a beta near 1 loses half of its digits in float32.
        whole = steps.double()
        first_correction = (1 - first**whole).float()
        second_root = (1 - second**whole).sqrt_().float()
        denominator = square.sqrt().div_(second_root).add_(self.options.eps)
        values.sub_(moment / denominator * (rates.lr / first_correction))
