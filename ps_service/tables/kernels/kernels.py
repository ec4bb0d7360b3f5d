"""The arithmetic of tables with torch alone, and what it is done with: gradients, with those of equal ids together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch.nn.functional import embedding_bag

if TYPE_CHECKING:
    from ps_service.tables.rows import Rows
    from ps_service.tables.rules import Rates


_FINITE: Final = torch.finfo(torch.float32).max / 2


def bag_of_each(offsets: torch.Tensor, count: int) -> torch.Tensor:
    """The bag of each of `count` positions, int64 [count], where bags begin at `offsets`."""
    ends = torch.cat([offsets[1:], offsets.new_tensor([count])])
    return torch.repeat_interleave(torch.arange(len(offsets), device="cpu"), ends - offsets, output_size=count)


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Gradients, float32 [k, dim], of n positions, for m different ids.

    `sources` has the row of `gradients` for each position: the positions of the first id in the order in which they
    were given, then those of the second, and so on, int64 [n]. `begins` says where those of each id begin, and the end,
    int64 [m + 1]. `scales` has the factor of each position, float32 [n], or of all of them, [1].
    """

    ids: torch.Tensor
    begins: torch.Tensor
    sources: torch.Tensor
    scales: torch.Tensor
    gradients: torch.Tensor

    @classmethod
    def of_different(cls, ids: torch.Tensor, gradients: torch.Tensor) -> Grouped:
        """Different ids, int64 [n], each with its gradient, float32 [n, dim]."""
        places = torch.arange(len(ids) + 1, device="cpu")
        return cls(ids, places, places[:-1], torch.ones(1, device="cpu"), gradients.contiguous())

    @property
    def is_of_different(self) -> bool:
        """Whether `of_different` has made it."""
        return self.sources.data_ptr() == self.begins.data_ptr()

    def part(self, chosen: torch.Tensor) -> Grouped:
        """The same of some of the ids only, bool [m]."""
        counts = self.begins.diff()
        positions = chosen.repeat_interleave(counts, output_size=len(self.sources))
        begins = torch.cat([counts.new_zeros(1), counts[chosen].cumsum(0)])
        scales = self.scales[positions] if len(self.scales) == len(positions) != 1 else self.scales
        return Grouped(self.ids[chosen], begins, self.sources[positions], scales, self.gradients)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        tensors = (self.ids, self.begins, self.sources, self.scales, self.gradients)
        return sum(each.nbytes for each in tensors)

    @property
    def sums_are_finite(self) -> bool:
        """Whether it shows, without the sums, that all of them are finite. They may be if it does not."""
        if not len(self.sources):
            return True
        low, high = self.gradients.aminmax()
        largest = max(-float(low), float(high)) * len(self.sources) * float(self.scales.abs().max())
        # NaN is not less than anything. Sums of float32 are rounded, but not to twice as much.
        return largest < _FINITE


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
        begins = torch.zeros(len(different) + 1, dtype=torch.int64, device="cpu")
        begins[1:] = torch.bincount(inverse, minlength=len(different)).cumsum(0)
        return Grouped(
            different,
            begins,
            order if offsets is None else bag_of_each(offsets, len(ids))[order],
            torch.ones(1, device="cpu") if scales is None else scales[order],
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

    def repeats(self, rows: Rows) -> bool:
        """Whether `update` gives rows the same bits wherever they are, whatever others are updated with them, and
        however many threads there are. Torch's loops take the last numbers of a tensor in another way than others."""
        return False

    def pool(
        self, rows: Rows, numbers: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        """The sums of the rows of bags, float32 [bags, dim]; `weights` are float32 [n], None for 1."""
        flat = rows.flat
        if flat is None:  # torch would pool rows in 16 bits into 16 bits
            flat, numbers = rows.values.read(numbers).float(), torch.arange(len(numbers), device="cpu")
        return embedding_bag(numbers, flat, offsets, mode="sum", per_sample_weights=weights)
