"""The rows of a shard as they were at one moment, while the shard goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ps_service.tables.id_map import make_id_map
from ps_service.tables.storage import make_rows

if TYPE_CHECKING:
    from ps_service.tables.shard import Block, TableShard
    from ps_wire.tables.versions import RowsVersion

_NOTHING: Final = -2
_IN_SHARD: Final = _NOTHING + 1


class PinnedRows:
    """As `RowKeeper`. A row is read from the shard until it changes or goes; before that, its values are copied. So
    there are at most as many copies as there were rows. What the optimizer keeps of rows is not in it. With `numbers`,
    int64 [n], it has only the rows with these, which are there.

    `version` is that of the rows, and `count` their number. The shard copies rows as long as something refers to this.
    """

    def __init__(self, shard: TableShard, numbers: torch.Tensor | None = None) -> None:
        self._shard: Final = shard
        with shard.lock:
            ids = shard.population.map
            # By number of a row: where it is copied to, or that it is in the shard, or that there was none.
            if numbers is None:
                _, in_use = ids.between(0, ids.rows)
                self._places = in_use.to(torch.int32).add_(_NOTHING)
            else:
                self._places = torch.full((ids.rows,), _NOTHING, dtype=torch.int32, device="cpu")
                self._places[numbers] = _IN_SHARD
            self.version: Final[RowsVersion] = shard.watchers.version
            self.count: Final = len(ids) if numbers is None else len(numbers)
            self._copied: Final = make_id_map(max(self.count, 1))
            self._values: Final = make_rows(max(self.count, 1), shard.dim, shard.dtype)
            shard.watchers.tell_before(self)
            shard.population.budget.watch(self)
            self._count_bytes()

    @property
    def nbytes(self) -> int:
        """Bytes of the copies, and of what says where rows are."""
        copied = self._copied.rows * self._shard.dim * self._shard.dtype.itemsize
        return copied + self._copied.memory + self._places.nbytes

    def keep(self, numbers: torch.Tensor) -> None:
        """As `RowKeeper.keep`."""
        numbers = numbers[numbers < len(self._places)]
        numbers = numbers[self._places[numbers] == _IN_SHARD]
        if not len(numbers):
            return
        population = self._shard.population
        places, _ = self._copied.find_or_add(population.map.ids_of(numbers), self.count)
        self._values.grow(self._copied.rows)
        self._values.write(places, population.values(numbers))
        self._places[numbers] = places.to(torch.int32)
        self._count_bytes()

    def _count_bytes(self) -> None:
        self._shard.population.budget.note(self, self.nbytes, 0)

    def read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the rows of ids that had one, [m, dim], and which did, bool [n]."""
        with self._shard.lock:
            numbers, places = self._shard.population.map.find(ids), self._copied.find(ids)
            in_shard = (numbers >= 0) & (numbers < len(self._places))
            in_shard[in_shard.clone()] = self._places[numbers[in_shard]] == _IN_SHARD
            there = in_shard | (places >= 0)
            return self._gathered(numbers[there], places[there], in_shard[there]), there

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """As `TableShard.look_up`, which adds none: ids that had no row read what they would begin with, or that of
        ids that are not admitted."""
        with self._shard.lock:
            found, there = self.read(ids)
            if there.all():
                return found
            default = self._shard.population.default
            numbers = torch.full((len(ids) - len(found),), -1 if default is None else default, device="cpu")
            values = torch.empty(len(ids), self._shard.dim, dtype=self._shard.dtype, device="cpu")
            values[there], values[~there] = found, self._shard.values_of(ids[~there], numbers)
            return values

    def block(self, begin: int, count: int) -> tuple[Block, int | None]:
        """Copies of the rows among the `count` numbers from `begin` on, by `ids` and `values`, and the number to go on
        with; None at the end. In this way each row comes once."""
        begin, end = min(begin, len(self._places)), min(begin + count, len(self._places))
        return self.at(torch.arange(begin, end, device="cpu")), end if end < len(self._places) else None

    def at(self, numbers: torch.Tensor) -> Block:
        """Copies of those rows that there were among some numbers, int64 [n]."""
        with self._shard.lock:
            places = self._places[numbers].long()
            there = places != _NOTHING
            numbers, places = numbers[there], places[there]
            in_shard = places == _IN_SHARD
            ids = torch.empty(len(numbers), dtype=torch.int64, device="cpu")
            ids[in_shard] = self._shard.population.map.ids_of(numbers[in_shard])
            ids[~in_shard] = self._copied.ids_of(places[~in_shard])
            return {"ids": ids, "values": self._gathered(numbers, places, in_shard)}

    def forget(self, numbers: torch.Tensor) -> None:
        """Has these rows no more: what was copied of them takes memory as long as this does, and no more is copied."""
        self._places[numbers] = _NOTHING

    def _gathered(self, numbers: torch.Tensor, places: torch.Tensor, in_shard: torch.Tensor) -> torch.Tensor:
        values = torch.empty(len(numbers), self._shard.dim, dtype=self._shard.dtype, device="cpu")
        values[in_shard] = self._shard.population.values(numbers[in_shard])
        values[~in_shard] = self._values.read(places[~in_shard])
        return values
