"""The rows of a table by number: a gradient of a pass names rows so until a step applies it."""

from __future__ import annotations

import torch

from ps_service.tables.checks import checked_ids, checked_offsets
from ps_service.tables.kernels import Grouped
from ps_service.tables.shard import BLOCK_ROWS, Block, TableShard


class NumberedShard(TableShard):
    """A shard whose rows are also found by number.

    An id keeps its number as long as its row exists, so gradients of several look-ups and passes can be added by
    number. A row must not be removed while open passes have looked it up.
    """

    def numbers(self, ids: torch.Tensor) -> torch.Tensor:
        """The numbers of the rows of ids, int64 [n]; missing rows are added.

        Raises:
            InvalidArgumentError: The ids are no int64 vector, or a table of fixed size has no such row.
            TooLargeError: There would be more rows than the shard may have; none was added.
        """
        ids = checked_ids(ids, self.rows)
        with self._lock:
            return self._find_or_add(ids)

    def read(self, numbers: torch.Tensor) -> torch.Tensor:
        """Copies of rows, [n, dim] of the table's dtype."""
        with self._lock:
            return self._rows.values.read(numbers)

    def pool(self, numbers: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """The sums of the rows of bags.

        Args:
            numbers: Numbers of rows, int64 [n].
            offsets: Where each bag begins, int64 [bags].
            weights: What each row is multiplied with, float32 [n]; None for 1.

        Returns:
            float32 [bags, dim].
        """
        with self._lock:
            return self._kernels.pool(self._rows, numbers, offsets, "sum", weights)

    def checked_bags(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """The offsets of bags, as int64.

        Raises:
            InvalidArgumentError: They fall, point outside, or belong to no ids.
        """
        return checked_offsets(offsets, len(ids))

    def update(self, numbers: torch.Tensor, gradients: torch.Tensor) -> None:
        """Applies the gradients of different rows, float32 [n, dim], as one step of the optimizer."""
        options, count = self.optimizer, len(numbers)
        places = torch.arange(count + 1)
        with self._lock:
            ids = self._map.ids_of(numbers)
            rates = self._groups.rates(ids, options.lr, getattr(options, "weight_decay", 0.0))
            summed = Grouped(ids, places, places[:-1], torch.ones(1), gradients.contiguous())
            self._kernels.update(self._rows, numbers, summed, rates)
            self._population.statistics.updated += count
            self._updates += 1

    def blocks(self, block_rows: int = BLOCK_ROWS) -> list[Block]:
        """All rows in blocks, as `state` gives them. They are views where that is possible, and no copies.

        Nobody may change the table before they have been written.
        """
        with self._lock:
            flat = {f"state.{name}": each.flat for name, each in self._rows.states.items()}
            flat["values"] = self._rows.values.flat
            ids, _ = self._map.items()
        count = len(ids)
        if count < self._map.rows or any(each is None for each in flat.values()):
            return list(self.state(block_rows))
        found = []
        for low in range(0, count, block_rows):
            high = min(low + block_rows, count)
            views = {name: each[low:high] for name, each in flat.items() if each is not None}
            found.append({"ids": ids[low:high], **views})
        return found
