"""The parameter that stands for all rows of a table on an owner, and the nodes that lead to it in torch's graph.

It has the shape of more rows than there will ever be, with the memory of one number. Its gradients are sparse: keys of
rows, and the sums of their gradients. So passes, optimizers and policies know a table as any parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ps_service.tables.applied_steps import Applied
from ps_service.tables.kernels.kernels import Grouped, bag_of_each
from ps_service.tables.row_gradients import UnsummedGradient, key_space, rows_gradient
from ps_wire.tables.routing import slots_of
from ps_wire.tables.sums import grouped, sum_by

if TYPE_CHECKING:
    from collections.abc import Mapping
    from weakref import ref

    from ps_service.tables.backups import RowBackups
    from ps_service.tables.shard import TableShard
    from ps_wire.tables.routing import Routing


class RowsOfTable:
    """The rows of a table on an owner, as far as passes, optimizers and metrics know them. Rows that nobody looks up
    expire after `ttl` seconds; None if they do not. `owner` is the name of the owner, and `mark` stands for the slots
    that it has; `applied` has steps that were applied to some of them. `backups` want to know of rows before they are
    updated; a step iterates over them, so they are replaced and not changed."""

    parameter: AllRows
    shard: TableShard
    routing: Routing
    owner = ""
    mark = 0
    applied = Applied()
    ttl: float | None
    backups: tuple[ref[RowBackups], ...]

    def changed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those options of the optimizer that differ from what they are now. Raises as `TableShard.set_options`."""
        now = self.shard.optimizer
        changed = {name: value for name, value in options.items() if getattr(now, name) != value}
        if changed:
            self.shard.check_options(**changed)
        return changed

    def check_routing(self, mark: int) -> None:
        """Raises `RowsMovedError` if this owner has other slots than a mark says, closed or not."""

    def sweep(self) -> None:
        """Gives up what is kept for readers that have not asked for long."""

    def apply(self, gradient: torch.Tensor, options: Mapping[str, Any]) -> None:
        """Updates rows with a gradient of `parameter` and these options of the optimizer."""
        if changed := self.changed(options):
            self.shard.set_options(**changed)
        groups = groups_of(gradient)
        if len(groups.ids):
            if self.backups:
                keys = groups.ids.sort().values
                for each in self.backups:
                    if (backups := each()) is not None:
                        backups.note(keys)
            self.shard.update(groups)


class AllRows(nn.Parameter):
    """All rows of a table on an owner, [key_space(dim), dim], as torch's graph knows them. It has no values."""

    table: RowsOfTable

    @classmethod
    def of(cls, table: RowsOfTable, dim: int) -> AllRows:
        """The parameter of a table with rows of `dim` numbers."""
        made: AllRows = torch.Tensor._make_subclass(
            cls, torch.zeros(1, 1, device="cpu").expand(key_space(dim), dim), True
        )
        made.table = table
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<AllRows of {self.table}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("the rows of a table are no tensor")

    def __deepcopy__(self, memo: dict[int, Any]) -> AllRows:
        raise TypeError("the rows of a table are no tensor, and cannot be copied")


def summed_rows(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys of the rows of a gradient of all rows, different and ascending, and the sum for each of them."""
    if isinstance(gradient, UnsummedGradient):
        gradient = gradient.summed()
    keys, values = gradient._indices()[0], gradient._values()
    if not gradient.is_coalesced():
        groups = grouped(keys)
        if len(groups.targets) < len(keys):
            return groups.targets, sum_by(groups, values)
        if not torch.equal(groups.targets, keys):
            return groups.targets, values.index_select(0, groups.order)
    return keys, values


def groups_of(gradient: torch.Tensor) -> Grouped:
    """The gradients of different keys of a gradient of all rows, without their sums where those are not there."""
    groups = gradient.pending if isinstance(gradient, UnsummedGradient) else None
    return Grouped.of_different(*summed_rows(gradient)) if groups is None else groups


class LookUp(torch.autograd.Function):
    """The rows of ids."""

    @staticmethod
    def forward(ctx: Any, rows: AllRows, shard: TableShard, ids: torch.Tensor, given: int) -> torch.Tensor:
        ctx.shard, ctx.given = shard, given
        keys, found = shard.rows_of(ids)
        # Saved as torch's own layers do it: a second backward is an error, and the bytes count for the pass.
        ctx.save_for_backward(keys)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (keys,) = ctx.saved_tensors
        return ctx.shard.gradient(keys, gradient, None, None, ctx.given), None, None, None


class Pool(torch.autograd.Function):
    """Sums of the rows of bags."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: AllRows,
        weights: torch.Tensor | None,
        shard: TableShard,
        ids: torch.Tensor,
        offsets: torch.Tensor,
    ) -> torch.Tensor:
        ctx.shard = shard
        # Their gradient needs the rows as they are now; a step may change them before.
        keep = weights is not None and weights.requires_grad
        factors = None if weights is None else weights.detach().float()
        keys, pooled, read = shard.pooled_rows_of(ids, offsets, factors, keep)
        ctx.save_for_backward(keys, offsets, weights, read)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        keys, offsets, weights, read = ctx.saved_tensors
        of_rows = of_weights = None
        if read is not None:
            # The product of each position's row with its bag's gradient.
            each = gradient.float().index_select(0, bag_of_each(offsets, len(read)))
            of_weights = (read.float() * each).sum(1).to(weights.dtype)
        if ctx.needs_input_grad[0]:
            factors = None if weights is None else weights.detach().float().contiguous()
            of_rows = ctx.shard.gradient(keys, gradient, offsets, factors, len(keys))
        return of_rows, of_weights, None, None, None


def without(parameter: AllRows, slots: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """A gradient of all rows, without those of some slots."""
    population, (keys, sums) = parameter.table.shard.population, summed_rows(gradient)
    with parameter.table.shard.lock:
        ids = population.map.ids_of(population.generations.numbers(keys))
    kept = ~slots[slots_of(ids)]
    return rows_gradient(keys[kept], sums[kept])
