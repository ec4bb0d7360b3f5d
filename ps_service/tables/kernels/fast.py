"""The arithmetic of tables with loops compiled by numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ps_service.tables.kernels import loops, updates
from ps_service.tables.kernels.grouped import Grouped
from ps_service.tables.kernels.plain import PlainKernels
from ps_service.tables.kernels.stepping import arrays_of, step_in_place
from ps_service.tables.randomness import INITIAL, normal_quantiles
from ps_wire.tables.hashing import mix_one
from ps_wire.tables.options import Normal, Uniform

if TYPE_CHECKING:
    from ps_service.tables.optimizers import Rates
    from ps_service.tables.rows import Rows

_NO_QUANTILES = np.zeros(0, np.float32)


class NumbaKernels(PlainKernels):
    """`Kernels` compiled by numba. Rows in 16 bits, or without one flat tensor, go through torch."""

    implementation = "numba"

    def unique(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(ids)
        bits = max(4, (2 * count - 1).bit_length())
        different, inverse = np.empty(count, np.int64), np.empty(count, np.int64)
        # The salt differs each time, so that nobody can choose ids that collide.
        salt = np.random.default_rng().integers(1 << 64, dtype=np.uint64)
        distinct = loops.unique(
            *(ids.numpy(), np.zeros(1 << bits, np.int32), np.uint64(64 - bits), salt, different, inverse)
        )
        return torch.from_numpy(different[:distinct]), torch.from_numpy(inverse)

    def group(
        self,
        ids: torch.Tensor,
        gradients: torch.Tensor,
        sources: torch.Tensor | None = None,
        scales: torch.Tensor | None = None,
    ) -> Grouped:
        different, inverse = self.unique(ids)
        begins, order = np.zeros(len(different) + 1, np.int64), np.empty(len(ids), np.int64)
        loops.group(inverse.numpy(), begins, order)
        positions = torch.from_numpy(order)
        return Grouped(
            different,
            torch.from_numpy(begins),
            positions if sources is None else sources[positions],
            torch.ones(1) if scales is None else scales[positions],
            gradients,
        )

    def sum(self, grouped: Grouped) -> torch.Tensor:
        sums = np.empty((len(grouped.ids), grouped.gradients.shape[1]), np.float32)
        updates.sum_all(arrays_of(grouped), sums)
        return torch.from_numpy(sums)

    def begin(self, rows: Rows, numbers: torch.Tensor, ids: torch.Tensor, fresh: bool) -> None:
        flat, init = rows.values.flat, rows.init
        if flat is None or flat.dtype != torch.float32 or not isinstance(init, Normal | Uniform):
            super().begin(rows, numbers, ids, fresh)
            return
        low, scale = (0.0, init.std) if isinstance(init, Normal) else (init.low, init.high - init.low)
        loops.draw(
            np.uint64(mix_one(rows.seed, INITIAL)),
            ids.numpy(),
            normal_quantiles() if isinstance(init, Normal) else _NO_QUANTILES,
            np.float32(low),
            np.float32(scale),
            numbers.numpy(),
            flat.numpy(),
        )
        rows.begin_states(numbers, fresh)

    def read(self, rows: Rows, numbers: torch.Tensor) -> torch.Tensor:
        flat = rows.values.flat
        if flat is None or flat.dtype != torch.float32:
            return super().read(rows, numbers)
        found = torch.empty(len(numbers), flat.shape[1])
        loops.gather(flat.numpy(), numbers.numpy(), found.numpy())
        return found

    def update(self, rows: Rows, numbers: torch.Tensor, grouped: Grouped, rates: Rates) -> None:
        flats = {name: storage.flat for name, storage in rows.states.items()}
        values = rows.values.flat
        if values is None or values.dtype != torch.float32 or any(each is None for each in flats.values()):
            super().update(rows, numbers, grouped, rates)
            return
        states = {name: each.numpy() for name, each in flats.items() if each is not None}
        step_in_place(rows.rule.options, values.numpy(), states, numbers.numpy(), grouped, rates)
