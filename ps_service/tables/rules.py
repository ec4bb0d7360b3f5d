"""Optimizers that change the rows that have a gradient, and no others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.options import (
    FTRL,
    SGD,
    Adagrad,
    LazyAdam,
    PartialRowWiseAdam,
    RowGroup,
    RowOptimizer,
    RowWiseAdagrad,
    check_groups,
)

States = Mapping[str, torch.Tensor]


class Rates(NamedTuple):
    """The options that may differ between rows: numbers, or float32 [n, 1]. The weight decay is decoupled."""

    lr: float | torch.Tensor
    weight_decay: float | torch.Tensor


@dataclass(slots=True)
class RowRule:
    """How one kind of optimizer updates rows.

    `options` may be replaced by others of the same kind. `update` changes values [n, dim] and states [n, width] of
    different rows in place; gradients are their sums. `widths` are the names of the numbers in float32 that it keeps
    for each row, and how many there are of each: 1, or the width of a row. Those that `initial` does not name begin
    with 0.
    """

    options: Any
    update: Callable[[Any, torch.Tensor, torch.Tensor, States, Rates], None]
    widths: dict[str, int]
    initial: dict[str, float] = field(default_factory=dict)


def make_rule(options: RowOptimizer, dim: int) -> RowRule:
    """The rule of an optimizer, for rows of width `dim`."""
    match options:
        case SGD():
            return RowRule(options, _sgd, {"velocity": dim} if options.momentum else {})
        case Adagrad():
            return RowRule(options, _adagrad, {"sum": dim}, {"sum": options.initial_accumulator})
        case RowWiseAdagrad():
            return RowRule(options, _row_wise_adagrad, {"sum": 1}, {"sum": options.initial_accumulator})
        case LazyAdam():
            return RowRule(options, _adam, {"moment": dim, "square": dim, "steps": 1})
        case PartialRowWiseAdam():
            return RowRule(options, _adam, {"moment": dim, "square": 1, "steps": 1})
        case FTRL():
            return RowRule(options, _ftrl, {"linear": dim, "sum": dim})


def _sgd(options: SGD, values: torch.Tensor, gradients: torch.Tensor, states: States, rates: Rates) -> None:
    decay(values, rates)
    if options.momentum:
        gradients = states["velocity"].mul_(options.momentum).add_(gradients)
    values.sub_(gradients * rates.lr)


def _adagrad(options: Adagrad, values: torch.Tensor, gradients: torch.Tensor, states: States, rates: Rates) -> None:
    decay(values, rates)
    sums = states["sum"].addcmul_(gradients, gradients)
    values.sub_(gradients / sums.sqrt().add_(options.eps) * rates.lr)


def _row_wise_adagrad(
    options: RowWiseAdagrad, values: torch.Tensor, gradients: torch.Tensor, states: States, rates: Rates
) -> None:
    decay(values, rates)
    sums = states["sum"].add_(gradients.square().mean(1, keepdim=True))
    values.sub_(gradients * (rates.lr / sums.sqrt().add_(options.eps)))


def _adam(
    options: LazyAdam | PartialRowWiseAdam,
    values: torch.Tensor,
    gradients: torch.Tensor,
    states: States,
    rates: Rates,
) -> None:
    """The bias of a row's moments is corrected for its own number of updates."""
    decay(values, rates)
    first, second = options.betas
    steps = states["steps"].add_(1)
    moment = states["moment"].lerp_(gradients, 1 - first)
    squares = gradients.square()
    if isinstance(options, PartialRowWiseAdam):
        squares = squares.mean(1, keepdim=True)
    square = states["square"].mul_(second).add_(squares, alpha=1 - second)
    # In float64, because 1 - beta^t of a beta near 1 loses half of its digits in float32.
    whole = steps.double()
    first_correction = (1 - first**whole).float()
    second_root = (1 - second**whole).sqrt_().float()
    denominator = square.sqrt().div_(second_root).add_(options.eps)
    values.sub_(moment / denominator * (rates.lr / first_correction))


def _ftrl(options: FTRL, values: torch.Tensor, gradients: torch.Tensor, states: States, rates: Rates) -> None:
    """The paper's z and n for each value. Algorithm 1 of the paper."""
    linear, sums = states["linear"], states["sum"]
    before = sums.sqrt()
    root = sums.addcmul_(gradients, gradients).sqrt()
    linear.add_(gradients).sub_((root - before) / rates.lr * values)
    shrunk = linear.sign() * options.l1 - linear
    values.copy_(shrunk / ((options.beta + root) / rates.lr + options.l2))
    values.masked_fill_(linear.abs() <= options.l1, 0.0)


def decay(values: torch.Tensor, rates: Rates) -> None:
    """Multiplies rows by `1 - lr * weight_decay` (I. Loshchilov, F. Hutter, "Decoupled Weight Decay", ICLR 2019)."""
    if isinstance(rates.weight_decay, torch.Tensor) or rates.weight_decay:
        values.mul_(1 - rates.lr * rates.weight_decay)


def with_options(rule: RowRule, dim: int, options: Mapping[str, Any]) -> RowOptimizer:
    """The options of an optimizer of rows of width `dim`, with some of them changed. Raises `InvalidArgumentError` if
    there is no such option, its value is not allowed, or it decides what rows keep."""
    try:
        changed: RowOptimizer = dataclasses.replace(rule.options, **options)
    except TypeError as error:
        raise InvalidArgumentError(f"{type(rule.options).__name__}: {error}") from None
    if make_rule(changed, dim).widths != rule.widths:
        raise InvalidArgumentError("momentum can not be switched on or off once the table has been made")
    return changed


class Groups:
    """Ranges of ids that have options of their own.

    Learning rates of groups keep their ratio to that of the table, as torch's schedulers scale that of each group of
    parameters. The ratio is to the one that the table was made with, so nothing but options has to be kept. To 0 there
    is no ratio: the rates of groups of a table that was made with 0 stay as they are.
    """

    def __init__(self, groups: Sequence[RowGroup], optimizer: RowOptimizer) -> None:
        check_groups(optimizer, groups)
        self._base: Final = optimizer.lr
        self.groups: Final = sorted(groups, key=lambda group: group.low)
        for one, next_one in zip(self.groups, self.groups[1:], strict=False):
            if next_one.low <= one.high:
                raise InvalidArgumentError(f"two groups of rows overlap: {one} and {next_one}")
        self._lows: Final = torch.tensor([group.low for group in self.groups], dtype=torch.int64, device="cpu")
        self._highs: Final = torch.tensor([group.high for group in self.groups], dtype=torch.int64, device="cpu")

    def rates(self, ids: torch.Tensor, lr: float, weight_decay: float) -> Rates:
        """Learning rate and weight decay of ids, int64 [n]: numbers, or float32 [n, 1] where there are groups. `lr` and
        `weight_decay` are those of rows without a group, or whose group has none, as they are now."""
        if not self.groups:
            return Rates(lr, weight_decay)
        group = torch.searchsorted(self._lows, ids, right=True) - 1
        group = torch.where((group >= 0) & (ids <= self._highs[group]), group, -1)
        # The last of these numbers, with the index -1, is for rows without a group.
        scale = lr / self._base if self._base else 1.0
        lrs = [lr if each.lr is None else each.lr * scale for each in self.groups]
        decays = [weight_decay if each.weight_decay is None else each.weight_decay for each in self.groups]
        return Rates(
            torch.tensor([*lrs, lr], device="cpu")[group][:, None],
            torch.tensor([*decays, weight_decay], device="cpu")[group][:, None],
        )
