"""Gradients of ids, with those of equal ids together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

_FINITE: Final = torch.finfo(torch.float32).max / 2


def bag_of_each(offsets: torch.Tensor, count: int) -> torch.Tensor:
    """The bag of each of `count` positions, int64 [count], where bags begin at `offsets`."""
    ends = torch.cat([offsets[1:], offsets.new_tensor([count])])
    return torch.repeat_interleave(torch.arange(len(offsets)), ends - offsets, output_size=count)


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
        places = torch.arange(len(ids) + 1)
        return cls(ids, places, places[:-1], torch.ones(1), gradients.contiguous())

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
