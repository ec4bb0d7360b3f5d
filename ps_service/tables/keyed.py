"""The rows of a table by key: a gradient of a pass names rows so until a step applies it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from ps_service.tables.checks import checked_ids, checked_offsets
from ps_service.tables.kernels import Grouped
from ps_service.tables.population import Candidates
from ps_service.tables.row_gradients import UnsummedGradient
from ps_service.tables.seen import first
from ps_service.tables.shard import TableShard


class KeyedShard(TableShard):
    """A shard whose rows are also found by key, see `Generations`.

    An id keeps its key as long as its row exists, so gradients of several look-ups and passes can be added by key. Ids
    without a row all have that of the row that they read.
    """

    def checked_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Contiguous ids, int64.

        Args:
            ids: int64, or int32 as trainers send those that fit.

        Raises:
            InvalidArgumentError: They are no such vector, or a table of fixed size has no such row.
        """
        return checked_ids(ids.long() if ids.dtype is torch.int32 else ids, self.rows)

    def checked_bags(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """The offsets of bags, as int64.

        Raises:
            InvalidArgumentError: They fall, point outside, or belong to no ids.
        """
        return checked_offsets(offsets, len(ids))

    def rows_of(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and copies of the rows of ids that training looks up; missing rows are added.

        Args:
            ids: int64 [n], checked.

        Returns:
            int64 [n], and [n, dim] of the table's dtype.

        Raises:
            TooLargeError: There would be more rows than the shard may have; none was added.
        """
        with self._lock:
            numbers = self._population.look_up(ids)
            return self._population.generations.keys(numbers), self._kernels.read(self._rows, numbers)

    def pooled_rows_of(
        self, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The keys of rows that training looks up, the sums of the rows of bags, and copies of the rows.

        Args:
            ids: int64 [n], checked.
            offsets: Where each bag begins, int64 [bags].
            weights: What each row is multiplied with, float32 [n]; None for 1.
            keep: Whether the rows are copied.

        Returns:
            int64 [n], float32 [bags, dim], and [n, dim] of the table's dtype or None.

        Raises:
            TooLargeError: There would be more rows than the shard may have; none was added.
        """
        with self._lock:
            numbers = self._population.look_up(ids)
            pooled = self._kernels.pool(self._rows, numbers, offsets, "sum", weights)
            kept = self._kernels.read(self._rows, numbers) if keep else None
            return self._population.generations.keys(numbers), pooled, kept

    def read(self, keys: torch.Tensor) -> torch.Tensor:
        """The values that rows have now, [n, dim], whatever they are for keys of rows that have gone."""
        with self._lock:
            return self._rows.values.read(self._population.generations.numbers(keys))

    def own(self, keys: torch.Tensor) -> torch.Tensor | None:
        """Which of the keys are of a row that belongs to one id alone, bool [n]; None if all are."""
        shared = self._population.default
        if shared is None:
            return None
        own = self._population.generations.numbers(keys) != shared
        return None if own.all() else own

    def gradient(
        self,
        keys: torch.Tensor,
        gradients: torch.Tensor,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
        given: int,
    ) -> UnsummedGradient:
        """The gradient of rows, from the gradients of a look-up.

        That of the row that ids without one read is left out here, and not only in the step, because norms and checks
        count it otherwise.

        Args:
            keys: What the look-up has returned, int64 [n].
            gradients: [n, dim], or [bags, dim].
            offsets: Where each bag begins, int64 [bags]; None without bags.
            weights: What each row was multiplied with, float32 [n]; None for 1.
            given: How many ids the trainer's program has looked up, before it was made sure that all are different.
        """
        with self._lock:
            self._population.statistics.gradients += given
        groups = self._kernels.group(keys, gradients.float(), offsets, weights)
        own = self.own(groups.ids)
        return UnsummedGradient.of(groups if own is None else groups.part(own), self._kernels.sum)

    @property
    def excess(self) -> int:
        """How many rows may make room before look-ups need it; 0 while there is enough room. Takes no lock."""
        return self._population.excess

    def turns(self, turn_rows: int, expire: bool) -> Iterator[None]:
        """Removes rows that have expired, and makes room in a table that is nearly full, in turns that are short.

        What makes room is chosen between turns. Rows that are looked up meanwhile stay.

        Args:
            turn_rows: How many rows a turn looks at, or removes at most.
            expire: Whether it is time for rows that have expired.

        Yields:
            None after each turn.
        """
        begin: int | None = 0
        while expire and begin is not None:
            _, begin = self.expire(begin, turn_rows)
            yield
        if not (wanted := self.excess):
            return
        parts = []
        for begin in range(0, self._map.rows, turn_rows):
            with self._lock:
                parts.append(self._population.candidates(begin, begin + turn_rows))
            yield
        every = Candidates.together(parts)
        for some in first(every.scores, wanted).split(turn_rows):
            with self._lock:
                self._population.make_room(every.some(some))
            yield

    def update(self, keys: torch.Tensor, gradients: torch.Tensor) -> None:
        """Applies the gradients of different rows, float32 [n, dim], as `update_grouped`."""
        self.update_grouped(Grouped.of_different(keys, gradients))

    def update_grouped(self, gradients: Grouped) -> None:
        """Applies the gradients of rows, which are named by key, as one step of the optimizer.

        Those of rows that have gone since they were looked up are dropped, and so are those of the row that ids without
        one read.
        """
        options = self.optimizer
        with self._lock:
            statistics, generations = self._population.statistics, self._population.generations
            own = self.own(gradients.ids)
            if own is not None:
                gradients = gradients.part(own)
            there = generations.current(gradients.ids)
            if there is not None:
                statistics.late += int((~there).sum())
                gradients = gradients.part(there)
            numbers, count = generations.numbers(gradients.ids), len(gradients.ids)
            if count:
                ids = self._map.ids_of(numbers) if self._needs_ids else numbers
                rates = self._groups.rates(ids, options.lr, getattr(options, "weight_decay", 0.0))
                self._kernels.update(self._rows, numbers, dataclasses.replace(gradients, ids=ids), rates)
            statistics.updated += count
            self._updates += 1

    @property
    def _needs_ids(self) -> bool:
        """Whether updates depend on ids: on groups of rows, or on the numbers that the rounding of a row draws."""
        return bool(self._groups.groups) or self.dtype is not torch.float32
