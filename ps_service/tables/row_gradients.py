"""Gradients of all rows of a table whose sums are made when somebody needs them. A step updates each row with the sum
of its gradients while it has them in a processor's cache; whatever else reads a gradient needs a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_service.tables.kernels import Grouped


def key_space(dim: int) -> int:
    """How many keys of rows of `dim` numbers there are: so many that a tensor with a row for each can be described."""
    return 1 << (60 - (dim - 1).bit_length())


def rows_gradient(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A gradient of all rows: keys of different rows, int64 [n], ascending, with the gradient of each, [n, dim]. Torch
    adds such ones one after the other, and others in an order that depends on which rows they have."""
    shape = (key_space(values.shape[1]), values.shape[1])
    return torch.sparse_coo_tensor(
        keys.unsqueeze(0), values.float(), shape, is_coalesced=True, check_invariants=False, device="cpu"
    )


class UnsummedGradient(torch.Tensor):
    """A sparse gradient of all rows, as `rows_gradient` makes it, without the sums until an operation needs them.

    For torch it is a tensor without entries. Every operation on it, also one of torch's engine, goes through
    `__torch_dispatch__`, which puts the sums in its place. `pending` says which gradients are summed for which keys,
    and is None once that was done. `most_bytes` is the most bytes that it holds, before or after that.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    pending: Grouped | None
    most_bytes: int
    _sum: Callable[[Grouped], torch.Tensor]
    _summed: torch.Tensor
    _finite: bool | None  # of the gradients that are pending; None until somebody asks

    @classmethod
    def of(cls, grouped: Grouped, sum: Callable[[Grouped], torch.Tensor]) -> Self:
        """The gradient of rows. The ids of `grouped` are keys, and `sum` sums its gradients, float32 [m, dim]."""
        dim = grouped.gradients.shape[1]
        made: Self = torch.Tensor._make_subclass(
            cls, rows_gradient(grouped.ids[:0], grouped.gradients.new_empty(0, dim))
        )
        made.pending, made._sum, made._finite = grouped, sum, None
        made.most_bytes = max(grouped.nbytes, len(grouped.ids) * (8 + 4 * dim))
        return made

    def summed(self) -> torch.Tensor:
        """The gradient as torch has it."""
        grouped = self.pending
        if grouped is not None:
            keys, order = grouped.ids.sort()
            self._summed = rows_gradient(keys, self._sum(grouped).index_select(0, order))
            self.pending = None
        return self._summed

    @property
    def is_surely_finite(self) -> bool:
        """Whether it shows without the sums that it holds neither NaN nor infinity."""
        if self.pending is None:
            return False
        if self._finite is None:
            self._finite = self.pending.sums_are_finite
        return self._finite

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map_only(cls, cls.summed, (args, kwargs or {}))
        return function(*args, **kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<UnsummedGradient of {key_space(self.shape[1])} rows>"
