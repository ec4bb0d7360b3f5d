"""What one owner holds of one table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch.nn.functional import embedding_bag

from ps_service.tables import bags, checks
from ps_service.tables.checks import checked_gradients, checked_ids, checked_offsets, checked_weights
from ps_service.tables.contents import BLOCK_ROWS, Block, Contents
from ps_service.tables.groups import Groups
from ps_service.tables.id_map import MOST_ROWS, make_id_map
from ps_service.tables.kernels import Grouped, make_kernels
from ps_service.tables.optimizers import make_rule, with_options
from ps_service.tables.population import Population
from ps_service.tables.preparing import PREPARATION
from ps_service.tables.rows import Rows
from ps_service.tables.storage import rows_in_memory
from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.locks import ReportingLock
from ps_wire.tables.options import Initialisation, Normal, RowGroup, RowOptimizer

if TYPE_CHECKING:
    from ps_service.tables.budget import TableBudget
    from ps_service.tables.statistics import Statistics
    from ps_wire.tables.life import Admission, Eviction

DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
MOST_DIM: Final = 65_536
Implementation = Literal["numba", "torch"]


class TableShard:
    """The rows of a table whose ids belong to one owner.

    A row comes into being when its id is first looked up or updated. Its first values depend on the seed and the id
    only, and its later ones on its own gradients, so a table has the same bits however it is split.

    All methods may be called from any thread. They take turns with one lock, which is held for the time of
    one call, without Python's global lock where numba and torch compute; a waiting thread of a pool reports that it
    waits. `state` takes it for each block. No method runs code of others or waits for anything else.
    No reader ever sees a part of an update. Tensors that are returned are copies.

    The first shard that a process makes waits until numba has loaded everything, about one second. The first time on a
    machine numba compiles it, in 6 to 11 seconds of one processor: the command `ps-service serve` has that done at its
    start (`ps_service.tables.compiling`).

    Args:
        dim: Width of a row.
        optimizer: How rows are updated.
        init: How rows begin.
        dtype: float32, float16 or bfloat16. Updates are computed in float32 and rounded stochastically to 16 bits.
        rows: For a table of fixed size, the number of all its rows, over all owners; its ids are 0 to `rows - 1`.
        seed: Seed of the first values and of the rounding, the same on all owners.
        max_rows: The most rows that this shard may have; None for as many as would fill the machine's memory.
        groups: Options of the optimizer for ranges of ids.
        refuse_non_finite: Whether gradients with NaN or infinity are refused.
        implementation: "numba" or "torch"; None for numba where it is installed. Their first values are the same. Their
            updates are the same to the accuracy of float32, so all owners of a table should have the same.
        admission: Which new ids get a row; None for all. The others read a row of equal values, and their gradients are
            dropped.
        eviction: When rows are removed; None for never.
        clock: The time in seconds, for `eviction`.
        owners: Among how many shards the rows are divided.

    Attributes:
        contents: The rows in blocks.

    Raises:
        InvalidArgumentError: An argument does not fit.
    """

    def __init__(
        self,
        dim: int,
        optimizer: RowOptimizer,
        init: Initialisation | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        rows: int | None = None,
        seed: int = 0,
        max_rows: int | None = None,
        groups: Sequence[RowGroup] = (),
        refuse_non_finite: bool = True,
        implementation: Implementation | None = None,
        admission: Admission | None = None,
        eviction: Eviction | None = None,
        clock: Callable[[], float] = time.time,
        owners: int = 1,
    ) -> None:
        checks.check_size("dim", dim, MOST_DIM)
        checks.check_size("rows", rows, MOST_ROWS)
        checks.check_size("max_rows", max_rows, MOST_ROWS)
        if rows is not None and (admission is not None or eviction is not None):
            raise InvalidArgumentError("ids are admitted and rows are evicted in tables that grow, without rows=")
        if dtype not in DTYPES:
            raise InvalidArgumentError(f"rows are float32, float16 or bfloat16, not {dtype}")
        self.dim: Final = dim
        self.dtype: Final = dtype
        self.rows: Final = rows
        self.init: Final = Normal() if init is None else init
        self.seed: Final = seed
        self.refuse_non_finite = refuse_non_finite
        self._groups: Final = Groups(groups, optimizer)
        rule = make_rule(optimizer, dim)
        self.max_rows: Final = min(
            each for each in (max_rows, rows, MOST_ROWS, rows_in_memory(dim, dtype, rule.widths)) if each is not None
        )
        self._kernels: Final = make_kernels(implementation)
        self._rows: Final = Rows(self.max_rows + 1, dim, dtype, rule, self.init, seed)
        self._map: Final = make_id_map(self.max_rows, implementation, rows, owners)
        self._population: Final = Population(
            self._map, self._rows, self._kernels, self.max_rows, admission, eviction, seed, clock
        )
        self._lock: Final = ReportingLock()
        self.contents: Final = Contents(self._lock, self._map, self._rows, self._population)
        self._updates = 0
        if self._kernels.implementation == "numba":
            PREPARATION.ensure(TableShard)

    @property
    def optimizer(self) -> RowOptimizer:
        """The optimizer's options."""
        options: RowOptimizer = self._rows.rule.options
        return options

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self._map)

    @property
    def memory(self) -> int:
        """Bytes in use by rows, by what the optimizer keeps for them, and by the map of ids."""
        return self._population.nbytes

    def count_in(self, budget: TableBudget, title: str) -> None:
        """Counts the rows in a budget of several tables; arguments as for `Population.count_in`."""
        with self._lock:
            self._population.count_in(budget, title)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, with what the optimizer keeps for it."""
        return self._rows.row_bytes

    @property
    def statistics(self) -> Statistics:
        """A copy of what was counted since the shard was made."""
        # Without the lock, which a long step may hold: the event loop reads them for metrics.
        return dataclasses.replace(self._population.statistics)

    @property
    def updates(self) -> int:
        """How many times `apply` or `apply_bags` has changed the table, or rows were loaded."""
        return self._updates

    def set_options(self, **options: Any) -> None:
        """Changes options of the optimizer, such as `lr`, from the next update on.

        Raises:
            InvalidArgumentError: There is no such option, its value is not allowed, or it decides what rows keep.
        """
        with self._lock:
            self._rows.rule.options = with_options(self._rows.rule, self.dim, options)

    def check_options(self, **options: Any) -> None:
        """Checks that `set_options` takes these. Raises its errors."""
        with_options(self._rows.rule, self.dim, options)

    def look_up(self, ids: torch.Tensor, *, add: bool = True) -> torch.Tensor:
        """The rows of ids.

        Args:
            ids: int64 [n], in any order; may repeat.
            add: Whether this look-up is one of training: missing rows are added, and rows are noted as seen. If not,
                what rows would begin with is returned for those that are missing.

        Returns:
            [n, dim] of the table's dtype.

        Raises:
            InvalidArgumentError: The ids are no int64 vector, or a table of fixed size has no such row.
            TooLargeError: There would be more rows than the table may have.
        """
        ids = checked_ids(ids, self.rows)
        with self._lock:
            return self._read(ids, self._population.look_up(ids) if add else self._population.find(ids))

    def bag(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor,
        mode: str = "sum",
        weights: torch.Tensor | None = None,
        *,
        add: bool = True,
    ) -> torch.Tensor:
        """Pooled rows, as `torch.nn.functional.embedding_bag` pools them. An empty bag is zero.

        Args:
            ids: int64 [n].
            offsets: Where each bag begins, int64 or int32 [bags]; the first is 0.
            mode: "sum" or "mean".
            weights: One factor for each id, with "sum" only.
            add: As for `look_up`.

        Returns:
            float32 [bags, dim].

        Raises:
            InvalidArgumentError: Ids, offsets, mode or weights do not fit.
            TooLargeError: There would be more rows than the table may have.
        """
        ids = checked_ids(ids, self.rows)
        offsets = checked_offsets(offsets, len(ids))
        weights = checked_weights(weights, mode, len(ids))
        with self._lock:
            rows = self._population.look_up(ids) if add else self._population.find(ids)
            if add or not (rows < 0).any():
                return self._kernels.pool(self._rows, rows, offsets, mode, weights)
            values = self._read(ids, rows).float()
        return embedding_bag(torch.arange(len(ids)), values, offsets, mode=mode, per_sample_weights=weights)

    def apply(self, ids: torch.Tensor, gradients: torch.Tensor) -> int:
        """Updates rows, with one step of the optimizer for each different id. All of it is applied, or nothing.

        Args:
            ids: int64 [n]. The gradients of equal ids are summed in the order in which they are given. Missing rows are
                added.
            gradients: [n, dim] of any floating-point dtype.

        Returns:
            How many updates the table has had, this one included.

        Raises:
            InvalidArgumentError: Ids or gradients do not fit.
            NonFiniteGradientError: A gradient is NaN or infinite, and the table refuses those.
            TooLargeError: There would be more rows than the table may have.
        """
        ids = checked_ids(ids, self.rows)
        gradients = checked_gradients(gradients, (len(ids), self.dim), self.refuse_non_finite)
        return self._update(self._kernels.group(ids, gradients))

    def apply_bags(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor,
        gradients: torch.Tensor,
        mode: str = "sum",
        weights: torch.Tensor | None = None,
    ) -> int:
        """Updates the rows that were pooled by `bag` with the same arguments, from the gradients of the bags.

        Args:
            ids: int64 [n].
            offsets: int64 or int32 [bags].
            gradients: [bags, dim] of any floating-point dtype.
            mode: "sum" or "mean".
            weights: One factor for each id, with "sum" only.

        Returns:
            How many updates the table has had, this one included.

        Raises:
            InvalidArgumentError: An argument does not fit.
            NonFiniteGradientError: A gradient is NaN or infinite, and the table refuses those.
            TooLargeError: There would be more rows than the table may have.
        """
        ids = checked_ids(ids, self.rows)
        offsets = checked_offsets(offsets, len(ids))
        weights = checked_weights(weights, mode, len(ids))
        gradients = checked_gradients(gradients, (len(offsets), self.dim), self.refuse_non_finite)
        scales = bags.scales_of(offsets, len(ids), mode, weights)
        return self._update(self._kernels.group(ids, gradients, offsets, scales))

    def state(self, block_rows: int = BLOCK_ROWS) -> Iterator[Block]:
        """All rows in blocks, in the order of their numbers.

        Each block is copied when it is asked for. Whoever needs all blocks as of one moment lets nobody update the
        table meanwhile.

        Args:
            block_rows: Most rows of a block.
        """
        return self.contents.blocks(block_rows)

    def load(self, blocks: Iterable[Mapping[str, torch.Tensor]], *, clear: bool = True) -> None:
        """Takes rows that `state` has given, of this shard or of others.

        Args:
            blocks: The blocks. If one does not fit, those before it have been taken.
            clear: Whether all rows are removed first.

        Raises:
            InvalidArgumentError: A block has other names, shapes or dtypes than this table.
            TooLargeError: There would be more rows than the table may have.
        """
        if clear:
            self.clear()
        for block in blocks:
            self.contents.put(block, self.rows)
            self._updates += 1

    def remove(self, ids: torch.Tensor) -> int:
        """Removes rows, which begin anew if their ids come again. Returns how many there were.

        Raises:
            InvalidArgumentError: The ids are no int64 vector, or a table of fixed size has no such row.
        """
        ids = checked_ids(ids, self.rows)
        with self._lock:
            return self._population.remove(ids)

    def evict(self, count: int | None = None, *, dry_run: bool = False) -> torch.Tensor:
        """Removes rows that have expired, as the table's `Eviction` says. Somebody has to call it from time to time.

        Args:
            count: None for the rows that have expired; or how many rows that make room first are removed.
            dry_run: Whether the rows stay, and it is only said which would go.

        Returns:
            The ids of the rows, int64.
        """
        with self._lock:
            return self._population.evict(count, dry_run)

    def expire(self, begin: int, count: int, *, dry_run: bool = False) -> tuple[torch.Tensor, int | None]:
        """Removes expired rows as `evict`, in turns that are short.

        Args:
            begin: The number of the first row to look at.
            count: How many rows to look at.
            dry_run: Whether the rows stay.

        Returns:
            The ids of the rows, int64, and where to go on; None at the end.
        """
        with self._lock:
            gone = self._population.expire(begin, begin + count, dry_run)
            return gone, begin + count if begin + count < self._map.rows else None

    def clear(self) -> None:
        """Removes all rows and gives their memory back."""
        with self._lock:
            self._population.clear()
            self._updates += 1

    def _read(self, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The rows with these numbers; those with -1 as they would begin."""
        missing = rows < 0
        if not missing.any():
            return self._kernels.read(self._rows, rows)
        values = torch.empty(len(ids), self.dim, dtype=self.dtype)
        values[missing] = self._rows.initial(ids[missing])
        values[~missing] = self._kernels.read(self._rows, rows[~missing])
        return values

    def _update(self, grouped: Grouped) -> int:
        """Applies gradients. Returns how many updates there have been."""
        with self._lock:
            rows = self._population.for_update(grouped.ids)
            statistics = self._population.statistics
            statistics.gradients += len(grouped.sources)
            if self._population.default is not None:
                admitted = rows != self._population.default
                rows, grouped = rows[admitted], grouped.part(admitted)
            statistics.updated += len(rows)
            options = self.optimizer
            rates = self._groups.rates(grouped.ids, options.lr, getattr(options, "weight_decay", 0.0))
            self._kernels.update(self._rows, rows, grouped, rates)
            self._updates += 1
            return self._updates
