"""Repeats rows in torch's graph, so that each distinct id of a look-up is sent once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.function import once_differentiable

from ps_wire.tables.sums import grouped, sum_by

if TYPE_CHECKING:
    from collections.abc import Sequence


_ROOT: Final = torch.empty(0, requires_grad=True)
"""The input of results that depend on no row. No gradient is accumulated there."""


class Repeat(torch.autograd.Function):
    """Takes rows by position, as `index_select` does. Its backward adds the gradients of a row in their order.

    Torch adds them one after the other to a tensor of zeros, which takes three times as long for a batch of 80,000.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        ctx.positions, ctx.dtype = positions, rows.dtype
        return rows.index_select(0, positions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Every row is at some position, so there is a sum for each.
        return sum_by(grouped(ctx.positions), gradient.contiguous()).to(ctx.dtype), None


class Nothing(torch.autograd.Function):
    """Zeros that require a gradient, as the rows of no ids do in local torch, and hand none on."""

    @staticmethod
    def forward(ctx: Any, root: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None]:
        return None, None, None


def zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The result of a look-up that no owner has a row of."""
    made: torch.Tensor = Nothing.apply(_ROOT, shape, dtype)  # type: ignore[no-untyped-call]
    return made


def repeated(parts: Sequence[torch.Tensor], positions: torch.Tensor | None) -> torch.Tensor:
    """The rows of several answers, one for each position.

    Args:
        parts: Rows [n, dim] of each answer.
        positions: Which of all these rows is wanted at each position, int64; None for all, in their order.
    """
    rows = parts[0] if len(parts) == 1 else torch.cat(list(parts))
    if positions is None:
        return rows
    made: torch.Tensor = Repeat.apply(rows, positions)  # type: ignore[no-untyped-call]
    return made
