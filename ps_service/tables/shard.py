"""What one owner holds of one table."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch.nn.functional import embedding_bag

from ps_service.tables import checks
from ps_service.tables.checks import checked_ids, checked_offsets, checked_weights
from ps_service.tables.feed import Feed
from ps_service.tables.id_map import MOST_ROWS, make_id_map
from ps_service.tables.kernels import Grouped, make_kernels
from ps_service.tables.population import Population
from ps_service.tables.row_gradients import UnsummedGradient
from ps_service.tables.row_steps import RowSteps
from ps_service.tables.rows import Rows
from ps_service.tables.rules import Groups, make_rule, with_options
from ps_service.tables.seen import Candidates, first
from ps_service.tables.storage import rows_in_memory
from ps_wire.codec.trees import mapped
from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.locks import ReportingLock
from ps_wire.tables.options import Initialisation, Normal, RowGroup, RowOptimizer

if TYPE_CHECKING:
    from ps_service.tables.budget import TableBudget
    from ps_service.tables.row_changes import RowChange, RowLog
    from ps_service.tables.statistics import Statistics
    from ps_wire.tables.lifecycle import Admission, Eviction

DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
MOST_DIM: Final = 65_536
TURN_ROWS: Final = 1 << 14
"""Rows that are looked at in one turn."""

BLOCK_ROWS: Final = 65_536
"""Rows of a block of the state."""

Block = dict[str, torch.Tensor]
"""`ids` int64 [n], `values` [n, dim], what the optimizer keeps, float32 [n, width], under `state.` and its name, and
where rows are evicted `age`, int64 [n], the microseconds since they were looked up, and `sightings`, int64 [n]."""

Implementation = Literal["numba", "torch"]


class TableShard:
    """The rows of a table whose ids belong to one owner.

    A row comes into being when its id is first looked up in training. Its first values depend on the seed and the id
    only, and its later ones on its own gradients, so a table has the same bits however it is split. Until a step
    applies their gradient, what training has looked up is named by keys, see `Generations`.

    All methods may be called from any thread. They take turns with one lock, which is held for the time of one call; no
    reader ever sees a part of an update. Tensors that are returned are copies. `updates` counts the calls that have
    changed or loaded rows.

    `rows` is the fixed number of all rows, 0 to `rows - 1`, over all `owners` among which they are divided; `max_rows`
    is how many this shard may have. The first values are the same with either `implementation`, and updates to the
    accuracy of float32, so all owners of a table should have the same. The clock is in seconds.
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
        rule = make_rule(optimizer, dim)
        self.max_rows: Final = min(
            each for each in (max_rows, rows, MOST_ROWS, rows_in_memory(dim, dtype, rule.widths)) if each is not None
        )
        self._kernels: Final = make_kernels(implementation)
        self._rows: Final = Rows(self.max_rows + 1, dim, dtype, rule, Normal() if init is None else init, seed)
        self._map: Final = make_id_map(self.max_rows, implementation, rows, owners)
        self.population: Final = Population(
            self._map, self._rows, self._kernels, self.max_rows, admission, eviction, seed, clock
        )
        self.steps: Final = RowSteps(self._rows, self.population, self._kernels, Groups(groups, optimizer))
        self.watchers: Final = self.population.watchers
        self.feed: Final = Feed(self.watchers, self._map, self.max_rows)
        self.lock: Final = ReportingLock()
        self.row_bytes: Final = self._rows.row_bytes
        self.updates = 0

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
        return self.population.nbytes

    @property
    def statistics(self) -> Statistics:
        """A copy of what was counted since the shard was made."""
        # Without the lock, which a long step may hold: the event loop reads them for metrics.
        return dataclasses.replace(self.population.statistics)

    def count_in(self, budget: TableBudget, title: str) -> None:
        """Counts the rows in a budget of several tables; arguments as for `Population.count_in`."""
        with self.lock:
            self.population.count_in(budget, title)

    def set_options(self, **options: Any) -> None:
        """Changes options of the optimizer, such as `lr`, from the next update on. Raises as `with_options`."""
        with self.lock:
            self._rows.rule.options = with_options(self._rows.rule, self.dim, options)

    def check_options(self, **options: Any) -> None:
        """Checks that `set_options` takes these. Raises its errors."""
        with_options(self._rows.rule, self.dim, options)

    def rows_of(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and copies of the rows of checked ids that training looks up; missing rows are added. Raises
        `TooLargeError`, with no row added, if there would be more rows than the shard may have."""
        with self.lock:
            numbers = self.population.look_up(ids)
            return self.population.generations.keys(numbers), self._kernels.read(self._rows, numbers)

    def pooled_rows_of(
        self, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """As `rows_of` the keys, the sums of the rows of bags in float32, and copies of the rows if `keep` says so.
        `weights`, float32 [n], are what each row is multiplied with; None for 1."""
        with self.lock:
            numbers = self.population.look_up(ids)
            pooled = self._kernels.pool(self._rows, numbers, offsets, weights)
            kept = self._kernels.read(self._rows, numbers) if keep else None
            return self.population.generations.keys(numbers), pooled, kept

    def look_up(self, ids: torch.Tensor, *, add: bool = True) -> torch.Tensor:
        """The rows of ids, int64 [n], without keys. Missing ones are added, as in `rows_of`, or without `add` are only
        read as they would begin. Raises `InvalidArgumentError` for no int64 vector, or a row that a table of fixed size
        has not."""
        ids = checked_ids(ids, self.rows)
        with self.lock:
            return self.values_of(ids, self.population.look_up(ids) if add else self.population.find(ids))

    def bag(self, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Sums of the rows of bags that are only read, float32 [bags, dim]; 0 if empty. Raises `TooLargeError`."""
        ids = checked_ids(ids, self.rows)
        offsets, weights = checked_offsets(offsets, len(ids)), checked_weights(weights, len(ids))
        with self.lock:
            rows = self.population.find(ids)
            if not (rows < 0).any():
                return self._kernels.pool(self._rows, rows, offsets, weights)
            self.population.budget.check_answer(4 * self.dim * len(ids))
            values = self.values_of(ids, rows).float()
        places = torch.arange(len(ids), device="cpu")
        return embedding_bag(places, values, offsets, mode="sum", per_sample_weights=weights)

    def values_of(self, ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Copies of the rows with these numbers, under the lock; those with -1 as they would begin."""
        missing = rows < 0
        if not missing.any():
            return self._kernels.read(self._rows, rows)
        values = torch.empty(len(ids), self.dim, dtype=self.dtype, device="cpu")
        values[missing] = self._rows.initial(ids[missing])
        values[~missing] = self._kernels.read(self._rows, rows[~missing])
        return values

    def read(self, keys: torch.Tensor) -> torch.Tensor:
        """The values that rows have now, [n, dim], whatever they are for keys of rows that have gone."""
        with self.lock:
            return self._rows.values.read(self.population.generations.numbers(keys))

    def gradient(
        self,
        keys: torch.Tensor,
        gradients: torch.Tensor,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
        given: int,
    ) -> UnsummedGradient:
        """The gradient of rows, from the gradients of a look-up or of its bags. That of the row that ids without one
        read is left out here, because norms and checks count it otherwise. `given` is how many ids the trainer's
        program has looked up, before it was made sure that all are different."""
        with self.lock:
            self.population.statistics.gradients += given
        groups = self._kernels.group(keys, gradients.float(), offsets, weights)
        own = self.own(groups.ids)
        return UnsummedGradient.of(groups if own is None else groups.part(own), self._kernels.sum)

    def own(self, keys: torch.Tensor) -> torch.Tensor | None:
        """Which of the keys are of a row that belongs to one id alone, bool [n]; None if all are."""
        shared = self.population.default
        if shared is None:
            return None
        own = self.population.generations.numbers(keys) != shared
        return None if own.all() else own

    def update(self, gradients: Grouped) -> None:
        """Applies the gradients of rows, which are named by key, as one step of the optimizer. Those of rows that have
        gone are dropped, and so are those of the row that ids without one read."""
        with self.lock:
            statistics, generations = self.population.statistics, self.population.generations
            own = self.own(gradients.ids)
            if own is not None:
                gradients = gradients.part(own)
            there = generations.current(gradients.ids)
            if there is not None:
                statistics.late += int((~there).sum())
                gradients = gradients.part(there)
            numbers, count = generations.numbers(gradients.ids), len(gradients.ids)
            if count:
                self.steps.make(numbers, gradients)
            statistics.updated += count
            self.updates += 1

    def load(self, blocks: Iterable[Mapping[str, torch.Tensor]], *, clear: bool = True, now: int = 0) -> None:
        """Takes blocks of rows, of this shard or of others; with `clear` in place of all rows. Their ages are those at
        a time, from which that of the rows goes on; at 0, now. Raises as `put`; blocks before one that does not fit
        have been taken then."""
        if now:
            with self.lock:
                self.population.go_on(now)
        if clear:
            self.clear()
        for block in blocks:
            self.put(block, now)

    def blocks(self, block_rows: int = BLOCK_ROWS, now: int = 0) -> Iterator[Block]:
        """Copies of all rows, in the order of their numbers; each is made when it is asked for, and none is empty.
        Whoever needs all as of one moment lets nobody update the table meanwhile."""
        begin: int | None = 0
        while begin is not None:
            block, begin = self.copies(begin, block_rows, now)
            if len(block["ids"]):
                yield block

    def copies(self, begin: int, count: int, now: int = 0) -> tuple[Block, int | None]:
        """Copies of the rows in use among the `count` numbers from `begin` on, with their ages at a time (at 0, now),
        and the number to go on with. A row keeps its number, so this gives each row that exists all the time once."""
        with self.lock:
            ids, in_use = self._map.between(begin, begin + count)
            numbers = begin + in_use.nonzero()[:, 0]
            states = {f"state.{name}": each.read(numbers) for name, each in self._rows.states.items()}
            life = self.population.life(numbers, now)
            block = {"ids": ids[in_use], "values": self._rows.values.read(numbers), **states, **life}
            return block, begin + count if begin + count < self._map.rows else None

    def views(self, now: int = 0) -> Iterator[Block]:
        """All rows in blocks that share the memory of the shard where that is possible, with their ages at a time (at
        0, now). One in which rows were removed says by `in_use`, bool [n], which are there. Nobody may change the shard
        before the last block was taken and written."""
        with self.lock:
            flat = {f"state.{name}": each.flat for name, each in self._rows.states.items()}
            flat["values"] = self._rows.values.flat
            used = self._map.rows
        if any(each is None for each in flat.values()):
            yield from self.blocks(now=now)
            return
        for low in range(0, used, BLOCK_ROWS):
            high = min(low + BLOCK_ROWS, used)
            with self.lock:
                ids, in_use = self._map.between(low, high)
                life = self.population.life(torch.arange(low, high, device="cpu"), now)
            views = {name: each[low:high] for name, each in flat.items() if each is not None}
            block = {"ids": ids, **views, **life}
            if not in_use.all():
                block["in_use"] = in_use
            yield block

    def put(self, block: Mapping[str, torch.Tensor], now: int = 0) -> None:
        """Puts rows in the place of those that their ids have, or adds them. Their ages are those at a time; at 0, now.

        Without `state.` entries what the optimizer keeps stays as it is, or begins anew. No row has changed if the
        block does not fit this table, has an id twice (`InvalidArgumentError`), or has too many rows (`TooLargeError`).
        """
        block = checks.used_part(block)
        checks.check_block(block, self.dim, self.dtype, self._rows.widths)
        ids = checked_ids(block["ids"], self.rows)
        with self.lock, self.population.telling(len(ids) * (self.row_bytes + 64)):
            numbers = self.population.put(ids)
            self._rows.values.write(numbers, block["values"])
            for name, storage in self._rows.states.items():
                if (state := block.get(f"state.{name}")) is not None:
                    storage.write(numbers, state)
            self.population.put_life(numbers, block, now)
            self.population.tell_images(numbers)
            self.updates += 1

    def tell(self, log: RowLog | None) -> None:
        """Has a log told what changes the rows, but for updates; None for nobody."""
        with self.lock:
            self.population.log = log

    def images(self, keys: torch.Tensor) -> RowChange:
        """What rows are now, without those that have gone since they had these keys. So the changes that a log gets of
        updates are right whatever came after them, if the lock is held until it has them."""
        with self.lock:
            for those in (self.own, self.population.generations.current):
                if (chosen := those(keys)) is not None:
                    keys = keys[chosen]
            return self.population.images(self.population.generations.numbers(keys))

    def redo(self, change: RowChange) -> None:
        """Makes a change again that a log was told."""
        with self.lock:
            (self.steps if change.kind == "stepped" else self.population).redo(change)

    def now(self) -> int:
        """The time of the rows, in microseconds."""
        return self.population.now()

    def admission_state(self) -> dict[str, Any] | None:
        """A copy of what admission remembers of ids without a row; None if every id gets one."""
        gate = self.population.gate
        with self.lock:
            return None if gate is None else mapped(gate.state(), torch.clone)

    def load_admission(self, state: Mapping[str, Any]) -> None:
        """Takes over what another shard's admission remembered. Raises as `CountingFilter.load`."""
        with self.lock:
            if self.population.gate is not None:
                self.population.gate.load(state)

    def remove(self, ids: torch.Tensor) -> int:
        """Removes rows, which begin anew if their ids come again. Returns how many there were. Raises as `look_up`."""
        ids = checked_ids(ids, self.rows)
        with self.lock:
            return self.population.remove(ids)

    def evict(self, count: int, *, dry_run: bool = False) -> torch.Tensor:
        """Removes so many of the rows that make room first, or only says which would go. Returns their ids."""
        with self.lock:
            return self.population.evict(count, dry_run)

    def expire(self, begin: int, count: int, *, dry_run: bool = False) -> tuple[torch.Tensor, int | None]:
        """Removes those of `count` rows from number `begin` on that have expired, or only says which would go. Returns
        their ids, int64, and where to go on; None at the end."""
        with self.lock:
            gone = self.population.expire(begin, begin + count, dry_run)
            return gone, begin + count if begin + count < self._map.rows else None

    @property
    def excess(self) -> int:
        """How many rows may make room before look-ups need it; 0 while there is enough room. Takes no lock."""
        return self.population.excess

    def turns(self, expire: bool, turn_rows: int = TURN_ROWS) -> Iterator[None]:
        """Removes rows that have expired, if it is time for those, and makes room in a table that is nearly full. A
        turn looks at so many rows, or removes at most as many. What makes room is chosen between turns; rows that are
        looked up meanwhile stay."""
        begin: int | None = 0
        while expire and begin is not None:
            _, begin = self.expire(begin, turn_rows)
            yield
        if not (wanted := self.excess):
            return
        parts = []
        for begin in range(0, self._map.rows, turn_rows):
            with self.lock:
                parts.append(self.population.candidates(begin, begin + turn_rows))
            yield
        every = Candidates(*(torch.cat(each) for each in zip(*parts, strict=True)))
        for some in first(every.scores, wanted).split(turn_rows):
            with self.lock:
                self.population.make_room(Candidates(*(each[some] for each in every)))
            yield

    def clear(self) -> None:
        """Removes all rows and gives their memory back."""
        with self.lock:
            self.population.clear()
            self.updates += 1
