"""Which ids have a row: how ids get one, and how rows go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from ps_service.tables.admission import make_gate
from ps_service.tables.budget import TableBudget
from ps_service.tables.generations import Generations
from ps_service.tables.seen import Seen, first, seen_bytes
from ps_service.tables.storage import MAP_BYTES
from ps_wire.errors import TooLargeError

if TYPE_CHECKING:
    from ps_service.tables.id_map import IdMap
    from ps_service.tables.kernels import Kernels
    from ps_service.tables.rows import Rows
    from ps_wire.tables.life import Admission, Eviction


class Candidates(NamedTuple):
    """Rows that may make room: their keys, when they were looked up, and scores, of which the lowest go first."""

    keys: torch.Tensor
    last: torch.Tensor
    scores: torch.Tensor


@dataclass(slots=True)
class Statistics:
    """Numbers since the shard was made. Ids count as often as they come, and trainers ask for the row of an id once."""

    looked_up: int = 0  # ids: those of a look-up of rows once, those of bags as often as they are there
    added: int = 0  # rows that came into being because their ids were looked up, or had a gradient
    refused: int = 0  # ids that training has looked up and that were not admitted
    missing: int = 0  # ids without a row that were only read
    loaded: int = 0  # rows that came into being because they were put or loaded
    evicted: int = 0  # rows that were removed to make room
    expired: int = 0  # rows that were removed because nobody had looked them up for long
    removed: int = 0  # rows that were removed by `remove` or `clear`
    gradients: int = 0  # ids for which there were gradients, as often as programs have given them
    updated: int = 0  # rows that these updated
    late: int = 0  # rows that had gone when a gradient for them was to be applied

    @property
    def hits(self) -> int:
        """Ids looked up that had a row already."""
        return max(self.looked_up - self.added - self.refused - self.missing, 0)


class Population:
    """The ids of a shard, and their rows. It is used under the lock of the shard. Ids that `gate` does not admit read
    the row `default`; both are None if every id gets a row. `seen` is None if nothing is evicted."""

    def __init__(
        self,
        id_map: IdMap,
        rows: Rows,
        kernels: Kernels,
        most: int,
        admission: Admission | None,
        eviction: Eviction | None,
        seed: int,
        clock: Callable[[], float],
    ) -> None:
        self._map: Final = id_map
        self._rows: Final = rows
        self._kernels: Final = kernels
        self._most: Final = most
        # The eviction, if rows make room in a full table.
        self._at_capacity: Final = None if eviction is None or eviction.at_capacity is None else eviction
        self._row_bytes: Final = rows.row_bytes + (0 if eviction is None else seen_bytes(eviction))
        self._clock: Final = clock
        self._budget = TableBudget("", sys.maxsize)
        self._title = "this table"
        self._default_value: Final = 0.0 if admission is None else admission.default
        self.gate: Final = make_gate(admission, seed)
        self.generations: Final = Generations(most, rows.values.width)
        self.default: Final = None if admission is None else most
        self.seen: Final = None if eviction is None else Seen(most, eviction)
        self.statistics: Final = Statistics()
        self._write_default()

    def count_in(self, budget: TableBudget, title: str) -> None:
        """Counts the memory of the rows in the budget of an owner, which bounds how many are added."""
        self._title, self._budget = title, budget
        budget.watch(self)
        budget.note(self, self.nbytes)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids that training looks up; those that get none now have `default`. Raises `TooLargeError`, with
        no row added or removed, if there would be more rows than there may be."""
        numbers = self._find_or_admit(ids)
        self.statistics.looked_up += len(ids)
        if self.seen is not None:
            self._note(numbers)
        return numbers

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids that are only read, -1 or `default` for those without one."""
        numbers = self._map.find(ids)
        missing = numbers < 0
        self.statistics.looked_up += len(ids)
        self.statistics.missing += int(missing.sum())
        return numbers if self.default is None else numbers.masked_fill_(missing, self.default)

    def put(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids that are loaded, which all get one. Raises as `look_up`."""
        before = self.statistics.added
        numbers = self._add(ids, ids)
        self.statistics.loaded += self.statistics.added - before
        self.statistics.added = before
        if self.seen is not None:
            self._note(numbers)
        return numbers

    def evict(self, count: int, dry_run: bool) -> torch.Tensor:
        """Removes the first `count` rows to go, unless they are spared, or only says which. Returns their ids."""
        if self.seen is None:
            return torch.empty(0, dtype=torch.int64)
        numbers, _, scores = self.seen.scores(self._rows, self._map.items()[1], self._clock())
        gone = self._map.ids_of(numbers[first(scores, count)])
        if not dry_run:
            self.statistics.evicted += self._remove(gone)
        return gone

    def expire(self, begin: int, end: int, dry_run: bool) -> torch.Tensor:
        """Removes the expired rows from number `begin` to before `end`, or only says which. Returns their ids."""
        if self.seen is None:
            return torch.empty(0, dtype=torch.int64)
        gone = self._map.ids_of(self.seen.expired(begin, min(end, self._map.rows), self._clock()))
        if not dry_run:
            self._remove(gone)
            self.statistics.expired += len(gone)
        return gone

    @property
    def excess(self) -> int:
        """How many rows may make room now, so that look-ups need not wait for it; 0 while there is enough room."""
        if self._at_capacity is None:
            return 0
        count, share = len(self._map), int(self._at_capacity.share * self._most)
        return count - (self._most - share) if count > self._most - share // 2 else 0

    def candidates(self, begin: int, end: int) -> Candidates:
        """The rows from number `begin` to before `end` that may make room."""
        assert self.seen is not None
        _, in_use = self._map.between(begin, end)
        numbers = begin + in_use.nonzero()[:, 0]
        numbers, last, scores = self.seen.scores(self._rows, numbers, self._clock())
        return Candidates(self.generations.keys(numbers), last, scores)

    def make_room(self, chosen: Candidates) -> None:
        """Removes rows, but for those that were looked up since, or have gone."""
        assert self.seen is not None
        numbers = self.generations.numbers(chosen.keys)
        same = self.seen.last(numbers) == chosen.last
        if (there := self.generations.current(chosen.keys)) is not None:
            same &= there
        self.statistics.evicted += self._remove(self._map.ids_of(numbers[same]))

    def remove(self, ids: torch.Tensor) -> int:
        """Removes the rows of ids. Returns how many there were."""
        count = self._remove(ids)
        self.statistics.removed += count
        return count

    def clear(self) -> None:
        """Removes all rows, and forgets which ids were seen."""
        self.statistics.removed += len(self._map)
        self._map.clear()
        self._rows.clear()
        self.generations.clear()
        if self.gate is not None:
            self.gate.clear()
        if self.seen is not None:
            self.seen.clear()
        self._write_default()
        self._budget.note(self, self.nbytes)

    def life(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is known of when and how often rows were looked up, as `Seen.ages`; empty if nothing is evicted."""
        return {} if self.seen is None else self.seen.ages(numbers, self._clock())

    def put_life(self, numbers: torch.Tensor, known: Mapping[str, torch.Tensor]) -> None:
        """Takes over what `life` has said of rows, here or on another owner."""
        if self.seen is not None:
            self.seen.put(numbers, known, self._clock())

    @property
    def nbytes(self) -> int:
        """Bytes in use by rows, by what the optimizer keeps for them, by the map, and by the filter of new ids."""
        return self._map.rows * self._row_bytes + self._map.memory + (0 if self.gate is None else self.gate.memory)

    def _find_or_admit(self, ids: torch.Tensor) -> torch.Tensor:
        if self.gate is None or self.default is None:
            return self._add(ids, ids)
        numbers = self._map.find(ids)
        missing = numbers < 0
        if missing.any():
            wanted = ids[missing]
            new, inverse = self._kernels.unique(wanted)
            admitted = self.gate.admits(new)
            added = torch.full((len(new),), self.default)
            added[admitted] = self._add(new[admitted], ids)
            numbers[missing] = added[inverse]
            self.statistics.refused += int((~admitted)[inverse].sum())
        return numbers

    def _add(self, ids: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """The rows of ids; all that are missing are added, and the rows of `kept` do not make room for them."""
        used = self._map.rows
        # Rows that have been removed take memory until other ids get their numbers.
        most = min(self._most, used + self._budget.room(self._row_bytes + MAP_BYTES))
        try:
            numbers, new = self._map.find_or_add(ids, most)
        except TooLargeError:
            self._budget.note(self, self.nbytes)  # the map may have made room for ids that were taken back
            if not self._make_room(ids, kept, most):
                raise self._exceeded(ids, most) from None
            used = self._map.rows
            numbers, new = self._map.find_or_add(ids, most)
        if new.any():
            added = numbers[new]
            self._rows.grow(self._map.rows)
            self._kernels.begin(self._rows, added, ids[new], fresh=bool((added >= used).all()))
            if self.seen is not None:
                self.seen.begin(self._map.rows, added, self._clock())
            self.statistics.added += len(added)
            self._budget.note(self, self.nbytes)
        return numbers

    def _exceeded(self, ids: torch.Tensor, most: int) -> TooLargeError:
        """The error for ids that would need more rows than there may be."""
        if most < self._most:
            return self._budget.exceeded(self._title)
        missing = len(self._kernels.unique(ids[self._map.find(ids) < 0])[0])
        where = f" on owner {self._budget.owner!r}" if self._budget.owner else ""
        if self._at_capacity is None:
            evicted = "have rows evicted (evict=tc.tables.Eviction(at_capacity=…))"
        else:
            evicted = (
                "give a smaller spare= to its Eviction, because rows that were looked up within the last "
                f"{self._at_capacity.spare:g} seconds make no room"
            )
        return TooLargeError(
            f"{self._title} has {len(self._map):,} rows{where}, and these ids need {missing:,} more: at most "
            f"{self._most:,} are allowed there. Make it with a larger max_rows, spread it over more owners, {evicted}, "
            "remove some, or admit fewer ids (admit=…)"
        )

    def _make_room(self, ids: torch.Tensor, kept: torch.Tensor, most: int) -> bool:
        """Removes rows until these ids have room, and some more; False if that is not possible."""
        if self._at_capacity is None:
            return False
        numbers = self._map.find(ids)
        needed = len(self._map) + len(self._kernels.unique(ids[numbers < 0])[0]) - most
        wanted = max(needed, int(self._at_capacity.share * most))
        going = self.evict(wanted + len(kept), dry_run=True)
        going = going[~torch.isin(going, kept)][:wanted]
        if len(going) < needed:
            return False
        self.statistics.evicted += self._remove(going)
        return True

    def _remove(self, ids: torch.Tensor) -> int:
        """Removes the rows of ids, and ends their keys. Returns how many there were."""
        freed = self._map.remove(ids)
        self.generations.free(freed)
        if self.seen is not None:
            self.seen.forget(freed)
        return len(freed)

    def _note(self, numbers: torch.Tensor) -> None:
        assert self.seen is not None
        different, _ = self._kernels.unique(numbers)
        self.seen.note(different if self.default is None else different[different != self.default], self._clock())

    def _write_default(self) -> None:
        if self.default is not None:
            values = self._rows.values
            row = torch.full((1, values.width), self._default_value, dtype=values.dtype)
            values.write(torch.tensor([self.default]), row)
