"""The arithmetic of tables with torch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import embedding_bag

from ps_service.tables.kernels.grouped import Grouped, bag_of_each

if TYPE_CHECKING:
    from ps_service.tables.rows import Rows
    from ps_service.tables.rules import Rates


class Kernels:
    """What is computed with ids and rows. Arguments have been checked."""

    def unique(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The different ids, int64 [m] in an order of the implementation, and the position of each id among them."""
        different, inverse = torch.unique(ids, return_inverse=True)
        return different, inverse

    def group(
        self,
        ids: torch.Tensor,
        gradients: torch.Tensor,
        offsets: torch.Tensor | None = None,
        scales: torch.Tensor | None = None,
    ) -> Grouped:
        """Puts the gradients of equal ids together: float32 [k, dim], one for each id, or with `offsets` one for each
        of k bags, whose ids all have it. `scales` are a factor for each id, float32 [n]; None for 1."""
        different, inverse = self.unique(ids)
        order = inverse.argsort(stable=True)
        begins = torch.zeros(len(different) + 1, dtype=torch.int64)
        begins[1:] = torch.bincount(inverse, minlength=len(different)).cumsum(0)
        return Grouped(
            different,
            begins,
            order if offsets is None else bag_of_each(offsets, len(ids))[order],
            torch.ones(1) if scales is None else scales[order],
            gradients.contiguous(),
        )

    def sum(self, grouped: Grouped) -> torch.Tensor:
        """The sums of the gradients of each id, in the order in which they were given, float32 [m, dim]."""
        factors = grouped.scales if len(grouped.scales) == len(grouped.sources) else None
        return embedding_bag(
            grouped.sources, grouped.gradients, grouped.begins[:-1], mode="sum", per_sample_weights=factors
        )

    def begin(self, rows: Rows, numbers: torch.Tensor, ids: torch.Tensor, fresh: bool) -> None:
        """Writes the first values of different rows; `fresh` says that none of them was used before."""
        rows.values.write(numbers, rows.initial(ids))
        rows.begin_states(numbers, fresh)

    def read(self, rows: Rows, numbers: torch.Tensor) -> torch.Tensor:
        """Copies of rows that are there, [n, dim] of their dtype."""
        return rows.values.read(numbers)

    def update(self, rows: Rows, numbers: torch.Tensor, grouped: Grouped, rates: Rates) -> None:
        """Applies gradients with one step of the rows' optimizer; `numbers` are the rows of the ids of `grouped`."""
        rows.update_copies(numbers, grouped.ids, self.sum(grouped), rates)

    def pool(
        self, rows: Rows, numbers: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """The sums of the rows of bags, float32 [bags, dim]; `weights` are float32 [n], None for 1."""
        flat = rows.flat
        if flat is None:  # torch would pool rows in 16 bits into 16 bits
            flat, numbers = rows.values.read(numbers).float(), torch.arange(len(numbers))
        return embedding_bag(numbers, flat, offsets, mode="sum", per_sample_weights=weights)
