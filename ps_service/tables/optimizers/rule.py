"""What an optimizer of rows is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

States = Mapping[str, torch.Tensor]


class Rates(NamedTuple):
    """The options that may differ between rows.

    Attributes:
        lr: Learning rate: a number, or float32 [n, 1].
        weight_decay: Decoupled weight decay, likewise.
    """

    lr: float | torch.Tensor
    weight_decay: float | torch.Tensor


class RowRule(ABC):
    """How one kind of optimizer updates rows.

    Attributes:
        options: Its options, one of `RowOptimizer`; may be replaced by others of the same kind.
        widths: The names of the numbers that it keeps for each row, and how many there are of each, for a row of
            width `dim`: 1 or `dim`. They are float32.
        initial: What they begin with; those that are not named begin with 0.
    """

    def __init__(self, options: Any, widths: dict[str, int], initial: dict[str, float] | None = None) -> None:
        self.options = options
        self.widths = widths
        self.initial = {} if initial is None else initial

    @abstractmethod
    def update(self, values: torch.Tensor, gradients: torch.Tensor, states: States, rates: Rates) -> None:
        """Changes values and states of different rows in place.

        Args:
            values: float32 [n, dim].
            gradients: float32 [n, dim], the sums for each row; not changed.
            states: float32 [n, width] for each name.
            rates: Learning rate and weight decay.
        """


def decay(values: torch.Tensor, rates: Rates) -> None:
    """Multiplies rows by `1 - lr * weight_decay` (I. Loshchilov, F. Hutter, "Decoupled Weight Decay", ICLR 2019)."""
    if isinstance(rates.weight_decay, torch.Tensor) or rates.weight_decay:
        values.mul_(1 - rates.lr * rates.weight_decay)
