"""The parameter that stands for all rows of a table on an owner, and the nodes that lead to it in torch's graph.

Passes, optimizers and policies know parameters and their gradients. A table has one parameter for them, in the shape
of more rows than there will ever be, with the memory of one number. Its gradients are sparse: numbers of rows, and the
sums of their gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ps_wire.tables.sums import grouped, sum_by

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_ROWS: Final = 1 << 40
"""The rows of the shape."""


class RowsOfTable(ABC):
    """The rows of a table on an owner, as far as passes, optimizers and metrics know them.

    Attributes:
        parameter: Stands for them in torch's graph.
        dim: Numbers in a row.
    """

    parameter: AllRows
    dim: int

    @abstractmethod
    def apply(self, gradient: torch.Tensor, options: Mapping[str, Any]) -> None:
        """Updates rows with a gradient of `parameter` and these options of the optimizer."""

    @abstractmethod
    def read(self, numbers: torch.Tensor) -> torch.Tensor:
        """Copies of rows by number, [n, dim]."""

    @abstractmethod
    def pool(self, numbers: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """The sums of the rows of bags, float32 [bags, dim]; see `NumberedShard.pool`."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of its optimizer."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of rows."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the rows, of what the optimizer keeps for them, and of the map of ids."""

    @property
    @abstractmethod
    def updates(self) -> int:
        """Number of updates since the start."""


class AllRows(nn.Parameter):
    """All rows of a table on an owner, [MOST_ROWS, dim], as torch's graph knows them. It has no values.

    Attributes:
        table: The table.
    """

    table: RowsOfTable

    @classmethod
    def of(cls, table: RowsOfTable, dim: int) -> AllRows:
        """The parameter of a table with rows of `dim` numbers."""
        made: AllRows = torch.Tensor._make_subclass(cls, torch.zeros(1, 1).expand(MOST_ROWS, dim), True)
        made.table = table
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<AllRows of {self.table}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("the rows of a table are no tensor")

    def __deepcopy__(self, memo: dict[int, Any]) -> AllRows:
        raise TypeError("the rows of a table are no tensor, and cannot be copied")


def rows_gradient(numbers: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A gradient of all rows.

    Torch adds gradients of different rows in ascending order one after the other, and others in an order that depends
    on which rows they have.

    Args:
        numbers: Numbers of different rows, int64 [n], ascending.
        values: The gradient of each, [n, dim].
    """
    shape = (MOST_ROWS, values.shape[1])
    return torch.sparse_coo_tensor(
        numbers.unsqueeze(0), values.float(), shape, is_coalesced=True, check_invariants=False
    )


class LookUp(torch.autograd.Function):
    """Rows by number."""

    @staticmethod
    def forward(ctx: Any, rows: AllRows, table: RowsOfTable, numbers: torch.Tensor) -> torch.Tensor:
        ctx.numbers = numbers
        return table.read(numbers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        groups = grouped(ctx.numbers)
        values = gradient.index_select(0, groups.order) if groups.are_different else sum_by(groups, gradient)
        return rows_gradient(groups.targets, values), None, None


class Pool(torch.autograd.Function):
    """Sums of the rows of bags."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: AllRows,
        weights: torch.Tensor | None,
        table: RowsOfTable,
        numbers: torch.Tensor,
        offsets: torch.Tensor,
    ) -> torch.Tensor:
        ctx.numbers, ctx.offsets = numbers, offsets
        ctx.weights = None if weights is None else weights.detach()
        # Their gradient needs the rows as they are now; a step may change them before.
        ctx.read = table.read(numbers) if weights is not None and weights.requires_grad else None
        return table.pool(numbers, offsets, None if weights is None else weights.detach().float())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        count = len(ctx.numbers)
        sizes = torch.diff(ctx.offsets, append=ctx.offsets.new_tensor([count]))
        bag_of = torch.repeat_interleave(sizes, output_size=count)
        of_weights = None
        if ctx.read is not None:
            of_weights = (ctx.read.float() * gradient.index_select(0, bag_of)).sum(1).to(ctx.weights.dtype)
        of_rows = None
        if ctx.needs_input_grad[0]:
            groups = grouped(ctx.numbers)
            of_rows = rows_gradient(groups.targets, sum_by(groups, gradient, bag_of, ctx.weights))
        return of_rows, of_weights, None, None, None
