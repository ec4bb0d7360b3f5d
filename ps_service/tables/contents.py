"""The rows of a shard in blocks: for checkpoints, exports, and what is put in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.tables import checks
from ps_wire.codec.trees import mapped

if TYPE_CHECKING:
    from ps_service.tables.id_map import IdMap
    from ps_service.tables.population import Population
    from ps_service.tables.rows import Rows
    from ps_wire.runtime.locks import ReportingLock

BLOCK_ROWS: Final = 65_536
"""Rows of a block of the state."""

Block = dict[str, torch.Tensor]
"""`ids` int64 [n], `values` [n, dim], what the optimizer keeps, float32 [n, width], under `state.` and its name, and
where rows are evicted `age`, int64 [n], the microseconds since they were looked up, and `sightings`, int64 [n]."""


class Contents:
    """The rows of a shard in blocks. The lock is that of the shard, and is taken for each block."""

    def __init__(self, lock: ReportingLock, id_map: IdMap, rows: Rows, population: Population) -> None:
        self._lock: Final = lock
        self._map: Final = id_map
        self._rows: Final = rows
        self._population: Final = population

    def blocks(self, block_rows: int = BLOCK_ROWS) -> Iterator[Block]:
        """Copies of all rows, in the order of their numbers; each is made when it is asked for, and none is empty.
        Whoever needs all as of one moment lets nobody update the table meanwhile."""
        begin: int | None = 0
        while begin is not None:
            block, begin = self.copies(begin, block_rows)
            if len(block["ids"]):
                yield block

    def copies(self, begin: int, count: int) -> tuple[Block, int | None]:
        """Copies of the rows in use among the `count` numbers from `begin` on, and the number to go on with. A row
        keeps its number, so this gives each row that exists all the time once."""
        with self._lock:
            ids, in_use = self._map.between(begin, begin + count)
            numbers = begin + in_use.nonzero()[:, 0]
            states = {f"state.{name}": each.read(numbers) for name, each in self._rows.states.items()}
            life = self._population.life(numbers)
            block = {"ids": ids[in_use], "values": self._rows.values.read(numbers), **states, **life}
            return block, begin + count if begin + count < self._map.rows else None

    def views(self, block_rows: int = BLOCK_ROWS) -> Iterator[Block]:
        """All rows in blocks that share the memory of the shard where that is possible. One in which rows were removed
        says by `in_use`, bool [n], which are there. Nobody may change the shard before the last block was taken and
        written."""
        with self._lock:
            flat = {f"state.{name}": each.flat for name, each in self._rows.states.items()}
            flat["values"] = self._rows.values.flat
            used = self._map.rows
        if any(each is None for each in flat.values()):
            yield from self.blocks(block_rows)
            return
        for low in range(0, used, block_rows):
            high = min(low + block_rows, used)
            with self._lock:
                ids, in_use = self._map.between(low, high)
                life = self._population.life(torch.arange(low, high))
            views = {name: each[low:high] for name, each in flat.items() if each is not None}
            block = {"ids": ids, **views, **life}
            if not in_use.all():
                block["in_use"] = in_use
            yield block

    def put(self, block: Mapping[str, torch.Tensor], rows: int | None) -> None:
        """Puts rows in the place of those that their ids have, or adds them. `rows` is the fixed size of a table.

        Without `state.` entries what the optimizer keeps stays as it is, or begins anew. No row has changed if the
        block does not fit this table, has an id twice (`InvalidArgumentError`), or has too many rows (`TooLargeError`).
        """
        block = checks.used_part(block)
        checks.check_block(block, self._rows.values.width, self._rows.values.dtype, self._rows.widths)
        ids = checks.checked_ids(block["ids"], rows)
        with self._lock:
            numbers = self._population.put(ids)
            self._rows.values.write(numbers, block["values"])
            for name, storage in self._rows.states.items():
                if (state := block.get(f"state.{name}")) is not None:
                    storage.write(numbers, state)
            self._population.put_life(numbers, block)

    def admission_state(self) -> dict[str, Any] | None:
        """A copy of what admission remembers of ids without a row; None if every id gets one."""
        gate = self._population.gate
        with self._lock:
            return None if gate is None else mapped(gate.state(), torch.clone)

    def load_admission(self, state: Mapping[str, Any]) -> None:
        """Takes over what another shard's admission remembered. Raises as `CountingFilter.load`."""
        with self._lock:
            if self._population.gate is not None:
                self._population.gate.load(state)
