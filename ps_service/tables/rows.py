"""The rows of a table: values, and what the optimizer keeps for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ps_service.tables.randomness import ROUNDING, initial_rows, random_bits, uniform
from ps_service.tables.storage import RowStorage, make_rows

if TYPE_CHECKING:
    from ps_service.tables.rules import Rates, RowRule
    from ps_wire.tables.options import Initialisation

UPDATES: Final = "updates"
"""Name of the number of updates of a row. Rows in 16 bits keep it: their rounding draws other numbers each time."""


class Rows:
    """Values in any of three dtypes, and states in float32, by the number of a row.

    `widths` says how many numbers are kept for a row beside its values, by name; `states` has them. `flat` is all
    values and `flat_states` all states as one tensor each, for loops that work in place on float32; `flat` is None
    where there are none. The seed is that of the first values and of the rounding.
    """

    def __init__(
        self, capacity: int, dim: int, dtype: torch.dtype, rule: RowRule, init: Initialisation, seed: int
    ) -> None:
        self.rule: Final = rule
        self.init: Final = init
        self.seed: Final = seed
        self.values: Final = make_rows(capacity, dim, dtype)
        self.widths: Final = rule.widths | ({} if dtype == torch.float32 else {UPDATES: 1})
        self.states: Final[dict[str, RowStorage]] = {
            name: make_rows(capacity, width, torch.float32) for name, width in self.widths.items()
        }
        self._storages: Final = (self.values, *self.states.values())
        self.row_bytes: Final = sum(each.width * each.dtype.itemsize for each in self._storages)
        self.flat_states: Final = {name: each.flat for name, each in self.states.items() if each.flat is not None}
        is_flat = dtype is torch.float32 and len(self.flat_states) == len(self.states)
        self.flat: Final = self.values.flat if is_flat else None

    def grow(self, rows: int) -> None:
        """Makes room for this many rows in all."""
        for storage in self._storages:
            storage.grow(rows)

    def begin_states(self, numbers: torch.Tensor, fresh: bool) -> None:
        """Writes what the optimizer keeps of new rows; `fresh` says that none was used before, so that all are zero."""
        for name, storage in self.states.items():
            first = self.rule.initial.get(name, 0.0)
            if fresh and not first:
                continue  # pages of zeros that nobody has written take no memory
            if storage.flat is not None:
                storage.flat.index_fill_(0, numbers, first)
            else:
                storage.write(numbers, torch.full((len(numbers), storage.width), first, device="cpu"))

    def initial(self, ids: torch.Tensor) -> torch.Tensor:
        """The first values of the rows of ids, [n, dim]."""
        return initial_rows(self.init, self.seed, ids, self.values.width, self.values.dtype)

    def update_copies(self, numbers: torch.Tensor, ids: torch.Tensor, gradients: torch.Tensor, rates: Rates) -> None:
        """Applies gradients, float32 [n, dim], to copies of different rows, with their ids, and writes them back."""
        states = {name: storage.read(numbers) for name, storage in self.states.items()}
        values = self.values.read(numbers).float()
        self.rule.update(self.rule.options, values, gradients, states, rates)
        if (updates := states.get(UPDATES)) is not None:
            updates.add_(1)
            counts = updates.view(-1).long().numpy()
            draws = uniform(random_bits(self.seed, ROUNDING, ids.numpy(), self.values.width, counts))
            values = round_stochastically(values, torch.from_numpy(draws), self.values.dtype)
        self.values.write(numbers, values)
        for name, storage in self.states.items():
            storage.write(numbers, states[name])

    def clear(self) -> None:
        """Gives the memory of all rows back."""
        for storage in self._storages:
            storage.clear()


def round_stochastically(values: torch.Tensor, draws: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounds float32 to one of its two neighbours in 16 bits, so that the expectation of the result is the value.

    The nearer neighbour is the more likely one (S. Gupta et al., "Deep Learning with Limited Numerical Precision", ICML
    2015). So updates smaller than half of the distance of neighbours are not lost. `draws` are evenly distributed from
    0 to below 1. Values beyond the range become infinite, as when rounded to nearest.
    """
    nearest = values.to(dtype)
    error = values - nearest.float()
    bits = nearest.view(torch.int16)
    # The next number away from zero has the next bit pattern, the next one towards zero that before. The neighbour of
    # zero itself is the smallest number with the sign of the error.
    outward = (error > 0) == (values > 0)
    neighbour_bits = torch.where(outward, bits + 1, bits - 1)
    smallest = torch.where(error > 0, 1, -0x7FFF).to(torch.int16)
    neighbour = torch.where(nearest == 0, smallest, neighbour_bits).view(dtype)
    distance = (neighbour.float() - nearest.float()).abs()
    taken = (draws * distance < error.abs()) & nearest.isfinite() & neighbour.isfinite()
    return torch.where(taken, neighbour, nearest)
