"""Which compiled loop steps the rows of which optimizer."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ps_service.tables.kernels import updates
from ps_wire.tables.options import FTRL, SGD, Adagrad, LazyAdam, PartialRowWiseAdam, RowOptimizer, RowWiseAdagrad

if TYPE_CHECKING:
    from ps_service.tables.kernels.grouped import Grouped
    from ps_service.tables.optimizers import Rates

Floats = npt.NDArray[np.float32]

_STEPS = 4096
"""Numbers of steps whose corrections are in a table. A power takes as long as a row of 64 values."""


def step_in_place(
    options: RowOptimizer,
    values: Floats,
    states: dict[str, Floats],
    numbers: npt.NDArray[np.int64],
    grouped: Grouped,
    rates: Rates,
) -> None:
    """Steps rows in place.

    Args:
        options: The optimizer.
        values: All rows [capacity, dim].
        states: What the optimizer keeps, by name [capacity, width].
        numbers: The rows of the ids of `grouped`.
        grouped: The gradients.
        rates: Learning rate and weight decay.
    """
    gradients = (numbers, arrays_of(grouped))
    lrs, decays = _each(rates.lr), _each(rates.weight_decay)
    match options:
        case SGD() if options.momentum:
            factor = np.float32(options.momentum)
            updates.momentum(values, states["velocity"], *gradients, lrs, decays, factor)
        case SGD():
            updates.sgd(values, *gradients, lrs, decays)
        case Adagrad():
            updates.adagrad(values, states["sum"], *gradients, lrs, decays, np.float32(options.eps))
        case RowWiseAdagrad():
            updates.row_wise_adagrad(values, states["sum"], *gradients, lrs, decays, np.float32(options.eps))
        case LazyAdam() | PartialRowWiseAdam():
            first, second = options.betas
            updates.adam(
                *(values, states["moment"], states["square"], states["steps"], *gradients, lrs, decays),
                *(first, second, _corrections(first), _corrections(second), np.float32(options.eps)),
            )
        case FTRL():
            limits = [np.float32(each) for each in (options.beta, options.l1, options.l2)]
            updates.ftrl(values, states["linear"], states["sum"], *gradients, lrs, *limits)


def arrays_of(grouped: Grouped) -> tuple[npt.NDArray[Any], ...]:
    """The arrays that the loops take."""
    return grouped.begins.numpy(), grouped.sources.numpy(), grouped.scales.numpy(), grouped.gradients.numpy()


def _each(rate: Any) -> Floats:
    """A rate as an array with one number for all rows or one for each."""
    return rate.view(-1).numpy() if isinstance(rate, torch.Tensor) else np.array([rate], np.float32)


@lru_cache(maxsize=16)
def _corrections(beta: float) -> npt.NDArray[np.float64]:
    """`1 - beta ** steps` for the first numbers of steps."""
    return 1 - np.float64(beta) ** np.arange(_STEPS)
