"""The arithmetic of tables with torch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import embedding_bag

from ps_service.tables.bags import bag_of_each
from ps_service.tables.kernels.grouped import Grouped

if TYPE_CHECKING:
    from ps_service.tables.optimizers import Rates
    from ps_service.tables.rows import Rows


class PlainKernels:
    """`Kernels` without numba."""

    implementation = "torch"

    def unique(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        different, inverse = torch.unique(ids, return_inverse=True)
        return different, inverse

    def group(
        self,
        ids: torch.Tensor,
        gradients: torch.Tensor,
        offsets: torch.Tensor | None = None,
        scales: torch.Tensor | None = None,
    ) -> Grouped:
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
        factors = grouped.scales if len(grouped.scales) == len(grouped.sources) else None
        return embedding_bag(
            grouped.sources, grouped.gradients, grouped.begins[:-1], mode="sum", per_sample_weights=factors
        )

    def begin(self, rows: Rows, numbers: torch.Tensor, ids: torch.Tensor, fresh: bool) -> None:
        rows.values.write(numbers, rows.initial(ids))
        rows.begin_states(numbers, fresh)

    def read(self, rows: Rows, numbers: torch.Tensor) -> torch.Tensor:
        return rows.values.read(numbers)

    def update(self, rows: Rows, numbers: torch.Tensor, grouped: Grouped, rates: Rates) -> None:
        rows.update_copies(numbers, grouped.ids, self.sum(grouped), rates)

    def pool(
        self, rows: Rows, numbers: torch.Tensor, offsets: torch.Tensor, mode: str, weights: torch.Tensor | None
    ) -> torch.Tensor:
        flat = rows.values.flat
        if flat is None or flat.dtype != torch.float32:  # torch would pool rows in 16 bits into 16 bits
            flat, numbers = rows.values.read(numbers).float(), torch.arange(len(numbers))
        return embedding_bag(numbers, flat, offsets, mode=mode, per_sample_weights=weights)
