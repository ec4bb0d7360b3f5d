"""The arithmetic of tables with loops compiled by numba."""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ps_service.tables.kernels import loops, updates
from ps_service.tables.kernels.kernels import Grouped, Kernels
from ps_service.tables.randomness import INITIAL, normal_quantiles
from ps_wire.tables.hashing import mix_one
from ps_wire.tables.options import FTRL, SGD, Adagrad, LazyAdam, Normal, PartialRowWiseAdam, RowWiseAdagrad, Uniform

if TYPE_CHECKING:
    import numpy.typing as npt

    from ps_service.tables.rows import Rows
    from ps_service.tables.rules import Rates

_NO_FACTORS = _NO_QUANTILES = np.zeros(0, np.float32)
_NO_OFFSETS = np.zeros(0, np.int64)

_STEPS = 4096
"""Numbers of steps whose corrections are in a table. A power takes as long as a row of 64 values."""


class NumbaKernels(Kernels):
    """`Kernels` compiled by numba. Rows in 16 bits, or without one flat tensor, go through torch."""

    def unique(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        different, _, numbers = _numbered(ids)
        return torch.from_numpy(different), torch.from_numpy(numbers).long()

    def group(
        self,
        ids: torch.Tensor,
        gradients: torch.Tensor,
        offsets: torch.Tensor | None = None,
        scales: torch.Tensor | None = None,
    ) -> Grouped:
        different, counts, numbers = _numbered(ids)
        if offsets is None and scales is None and len(different) == len(ids):
            return Grouped.of_different(torch.from_numpy(different), gradients)
        begins, sources = np.empty(len(different) + 1, np.int64), np.empty(len(ids), np.int64)
        factors = _NO_FACTORS if scales is None else scales.numpy()
        placed = np.empty(len(factors), np.float32)
        loops.place(
            *(counts, numbers, _NO_OFFSETS if offsets is None else offsets.numpy(), factors, begins, sources, placed)
        )
        return Grouped(
            torch.from_numpy(different),
            torch.from_numpy(begins),
            torch.from_numpy(sources),
            torch.ones(1, device="cpu") if scales is None else torch.from_numpy(placed),
            gradients.contiguous(),
        )

    def sum(self, grouped: Grouped) -> torch.Tensor:
        sums = np.empty((len(grouped.ids), grouped.gradients.shape[1]), np.float32)
        updates.sum_all(_arrays_of(grouped), sums)
        return torch.from_numpy(sums)

    def begin(self, rows: Rows, numbers: torch.Tensor, ids: torch.Tensor, fresh: bool) -> None:
        flat, init = rows.flat, rows.init
        if flat is None or not isinstance(init, Normal | Uniform):
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
        if rows.flat is None:
            return super().read(rows, numbers)
        found = torch.empty(len(numbers), rows.flat.shape[1], device="cpu")
        loops.gather(rows.flat.numpy(), numbers.numpy(), found.numpy())
        return found

    def repeats(self, rows: Rows) -> bool:
        return rows.flat is not None

    def update(self, rows: Rows, numbers: torch.Tensor, grouped: Grouped, rates: Rates) -> None:
        if rows.flat is None:
            super().update(rows, numbers, grouped, rates)
            return
        values = rows.flat.numpy()
        states = {name: each.numpy() for name, each in rows.flat_states.items()}
        gradients = (numbers.numpy(), _arrays_of(grouped))
        lrs, decays = _each(rates.lr), _each(rates.weight_decay)
        match rows.rule.options:
            case SGD(momentum=momentum) if momentum:
                updates.momentum(values, states["velocity"], *gradients, lrs, decays, np.float32(momentum))
            case SGD():
                updates.sgd(values, *gradients, lrs, decays)
            case Adagrad(eps=eps):
                updates.adagrad(values, states["sum"], *gradients, lrs, decays, np.float32(eps))
            case RowWiseAdagrad(eps=eps):
                updates.row_wise_adagrad(values, states["sum"], *gradients, lrs, decays, np.float32(eps))
            case LazyAdam(eps=eps, betas=(first, second)) | PartialRowWiseAdam(eps=eps, betas=(first, second)):
                updates.adam(
                    *(values, states["moment"], states["square"], states["steps"], *gradients, lrs, decays),
                    *(first, second, _corrections(first), _corrections(second), np.float32(eps)),
                )
            case FTRL() as options:
                limits = [np.float32(each) for each in (options.beta, options.l1, options.l2)]
                updates.ftrl(values, states["linear"], states["sum"], *gradients, lrs, *limits)


def _numbered(ids: torch.Tensor) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The different ids, how often each comes, and the number of each position's id among them."""
    count = len(ids)
    # At least 1.5 places for each id; one of them is empty in any case.
    bits = max(4, (3 * count // 2).bit_length())
    different, counts = np.empty(count, np.int64), np.empty(count, np.int32)
    numbers = np.empty(count, np.int32)
    factor = np.uint64(secrets.randbits(64) | 1)
    distinct = loops.number(
        *(ids.numpy(), np.zeros(1 << bits, np.int32), np.uint64(64 - bits), factor, different, counts, numbers)
    )
    return different[:distinct], counts[:distinct], numbers


def _arrays_of(grouped: Grouped) -> tuple[npt.NDArray[Any], ...]:
    """The arrays that the loops take."""
    return grouped.begins.numpy(), grouped.sources.numpy(), grouped.scales.numpy(), grouped.gradients.numpy()


def _each(rate: Any) -> npt.NDArray[np.float32]:
    """A rate as an array with one number for all rows or one for each."""
    return rate.view(-1).numpy() if isinstance(rate, torch.Tensor) else np.array([rate], np.float32)


@lru_cache(maxsize=16)
def _corrections(beta: float) -> npt.NDArray[np.float64]:
    """`1 - beta ** steps` for the first numbers of steps."""
    return 1 - np.float64(beta) ** np.arange(_STEPS)
