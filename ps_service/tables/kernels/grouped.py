"""Gradients of ids, with those of equal ids together."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Gradients of n positions, for m different ids.

    Attributes:
        ids: The different ids, int64 [m].
        begins: Where the positions of each id begin in `sources`, and the end, int64 [m + 1].
        sources: The row of `gradients` for each position, int64 [n]: the positions of the first id in the order in
            which they were given, then those of the second, and so on.
        scales: The factor of each position, float32 [n], or of all of them, [1].
        gradients: float32 [k, dim].
    """

    ids: torch.Tensor
    begins: torch.Tensor
    sources: torch.Tensor
    scales: torch.Tensor
    gradients: torch.Tensor

    def part(self, chosen: torch.Tensor) -> Grouped:
        """The same of some of the ids only, bool [m]."""
        counts = self.begins.diff()
        positions = chosen.repeat_interleave(counts, output_size=len(self.sources))
        begins = torch.cat([counts.new_zeros(1), counts[chosen].cumsum(0)])
        scales = self.scales[positions] if len(self.scales) == len(positions) != 1 else self.scales
        return Grouped(self.ids[chosen], begins, self.sources[positions], scales, self.gradients)
