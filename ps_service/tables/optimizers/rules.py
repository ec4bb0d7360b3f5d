"""The rule of each kind of optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.tables.optimizers.adam import AdamRule
from ps_service.tables.optimizers.adaptive import AdagradRule, RowWiseAdagradRule
from ps_service.tables.optimizers.gradient_descent import GradientDescent
from ps_service.tables.optimizers.proximal import ProximalRule
from ps_wire.tables.options import FTRL, SGD, Adagrad, LazyAdam, PartialRowWiseAdam, RowOptimizer, RowWiseAdagrad

if TYPE_CHECKING:
    from ps_service.tables.optimizers.rule import RowRule


def make_rule(options: RowOptimizer, dim: int) -> RowRule:
    """The rule of an optimizer, for rows of width `dim`."""
    match options:
        case SGD():
            return GradientDescent(options, dim)
        case Adagrad():
            return AdagradRule(options, dim)
        case RowWiseAdagrad():
            return RowWiseAdagradRule(options, dim)
        case LazyAdam() | PartialRowWiseAdam():
            return AdamRule(options, dim)
        case FTRL():
            return ProximalRule(options, dim)
