"""Which ids have a row: how ids get one, and how rows go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.tables.admission import make_gate
from ps_service.tables.budget import TableBudget
from ps_service.tables.generations import Generations
from ps_service.tables.row_changes import RowChange
from ps_service.tables.seen import Candidates, Seen, first, seen_bytes
from ps_service.tables.statistics import Statistics
from ps_service.tables.storage import MAP_BYTES
from ps_service.tables.watchers import Watchers
from ps_wire.errors import StorageError, TooLargeError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ps_service.tables.id_map import IdMap
    from ps_service.tables.kernels import Kernels
    from ps_service.tables.row_changes import Kind, RowLog
    from ps_service.tables.rows import Rows
    from ps_wire.errors import PsError
    from ps_wire.tables.lifecycle import Admission, Eviction

_UNTOLD: Final = nullcontext()


class Population:
    """The ids of a shard, and their rows. It is used under the lock of the shard. Ids that `gate` does not admit read
    the row `default`; both are None if every id gets a row. `seen` is None if nothing is evicted, `log` without one."""

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
        self.map: Final = id_map
        self._rows: Final = rows
        self._kernels: Final = kernels
        self._most: Final = most
        # The eviction, if rows make room in a full table.
        self._at_capacity: Final = None if eviction is None or eviction.at_capacity is None else eviction
        self._row_bytes: Final = rows.row_bytes + (0 if eviction is None else seen_bytes(eviction))
        self._clock: Final = clock
        # Microseconds by which the time of the rows is before that of the clock.
        self._behind = 0
        self.budget = TableBudget("", sys.maxsize)
        self._title = "this table"
        self._default_value: Final = 0.0 if admission is None else admission.default
        self.gate: Final = make_gate(admission, seed)
        self.generations: Final = Generations(most, rows.values.width)
        self.default: Final = None if admission is None else most
        self.seen: Final = None if eviction is None else Seen(most, eviction)
        self.statistics: Final = Statistics()
        self.log: RowLog | None = None
        self.watchers: Final = Watchers(id_map)
        self._write_default()

    def count_in(self, budget: TableBudget, title: str) -> None:
        """Counts the memory of the rows in the budget of an owner, which bounds how many are added."""
        self._title, self.budget = title, budget
        budget.watch(self)
        budget.note(self, self.nbytes, self.map.rows)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids that training looks up; those that get none now have `default`. Raises `TooLargeError`, with
        no row added or removed, if there would be more rows than there may be, and `StorageError` if the log has no
        room for what ids without a row would change; those with one are only read then."""
        if self.log is None:
            return self._looked_up(ids)
        try:
            self.log.check(self._record_bytes(ids))
        except StorageError:
            numbers = self.map.find(ids)
            if (numbers < 0).any():
                raise
            self.statistics.looked_up += len(ids)
            return numbers
        with self.log.telling():
            return self._looked_up(ids)

    def _looked_up(self, ids: torch.Tensor) -> torch.Tensor:
        numbers = self._find_or_admit(ids)
        self.statistics.looked_up += len(ids)
        if self.seen is not None:
            self._note(numbers)
        return numbers

    def find(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids that are only read, -1 or `default` for those without one."""
        numbers = self.map.find(ids)
        missing = numbers < 0
        self.statistics.looked_up += len(ids)
        self.statistics.missing += int(missing.sum())
        return numbers if self.default is None else numbers.masked_fill_(missing, self.default)

    def put(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids that are about to be loaded, which all get one. Raises as `look_up`."""
        before = self.statistics.added
        numbers = self._add(ids, ids)
        self.watchers.changing(numbers)
        self.statistics.loaded += self.statistics.added - before
        self.statistics.added = before
        if self.seen is not None:
            self._note(numbers)
        return numbers

    def evict(self, count: int, dry_run: bool) -> torch.Tensor:
        """Removes the first `count` rows to go, unless they are spared, or only says which. Returns their ids."""
        if self.seen is None:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        numbers, _, scores = self.seen.scores(self._rows, self.map.items()[1], self.now())
        gone = self.map.ids_of(numbers[first(scores, count)])
        if not dry_run:
            with self.telling(8 * len(gone)):
                self.statistics.evicted += self._remove(gone)
        return gone

    def expire(self, begin: int, end: int, dry_run: bool) -> torch.Tensor:
        """Removes the expired rows from number `begin` to before `end`, or only says which. Returns their ids."""
        if self.seen is None:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        gone = self.map.ids_of(self.seen.expired(begin, min(end, self.map.rows), self.now()))
        if not dry_run and len(gone):
            with self.telling(8 * len(gone)):
                self._remove(gone)
            self.statistics.expired += len(gone)
        return gone

    @property
    def excess(self) -> int:
        """How many rows may make room now, so that look-ups need not wait for it; 0 while there is enough room."""
        if self._at_capacity is None:
            return 0
        count, share = len(self.map), int(self._at_capacity.share * self._most)
        return count - (self._most - share) if count > self._most - share // 2 else 0

    def candidates(self, begin: int, end: int) -> Candidates:
        """The rows from number `begin` to before `end` that may make room."""
        assert self.seen is not None
        _, in_use = self.map.between(begin, end)
        numbers = begin + in_use.nonzero()[:, 0]
        numbers, last, scores = self.seen.scores(self._rows, numbers, self.now())
        return Candidates(self.generations.keys(numbers), last, scores)

    def make_room(self, chosen: Candidates) -> None:
        """Removes rows, but for those that were looked up since, or have gone."""
        assert self.seen is not None
        numbers = self.generations.numbers(chosen.keys)
        same = self.seen.last(numbers) == chosen.last
        if (there := self.generations.current(chosen.keys)) is not None:
            same &= there
        with self.telling(8 * len(numbers)):
            self.statistics.evicted += self._remove(self.map.ids_of(numbers[same]))

    def remove(self, ids: torch.Tensor) -> int:
        """Removes the rows of ids. Returns how many there were."""
        with self.telling(8 * len(ids)):
            count = self._remove(ids)
        self.statistics.removed += count
        return count

    def clear(self) -> None:
        """Removes all rows, and forgets which ids were seen."""
        with self.telling():
            self._tell("cleared", {})
            self.statistics.removed += len(self.map)
            self._clear()

    def _clear(self) -> None:
        self.watchers.clearing()
        self.map.clear()
        self._rows.clear()
        self.generations.clear()
        if self.gate is not None:
            self.gate.clear()
        if self.seen is not None:
            self.seen.clear()
        self.watchers.cleared()
        self._write_default()
        self.budget.note(self, self.nbytes, self.map.rows)

    def life(self, numbers: torch.Tensor, now: int = 0) -> dict[str, torch.Tensor]:
        """What is known at a time (at 0, now) of when and how often rows were looked up, as `Seen.ages`; empty if
        nothing is evicted."""
        return {} if self.seen is None else self.seen.ages(numbers, now or self.now())

    def put_life(self, numbers: torch.Tensor, known: Mapping[str, torch.Tensor], now: int = 0) -> None:
        """Takes over what `life` has said of rows, here or on another owner, at a time; at 0, now."""
        if self.seen is not None:
            self.seen.put(numbers, known, now or self.now())

    def now(self) -> int:
        """The time of the rows in microseconds: that of the clock, but it stands still while the owner is away."""
        return int(self._clock() * 1e6) - self._behind

    def go_on(self, time: int) -> None:
        """Has the time of the rows go on from one that it had, here or in an earlier process."""
        self._behind = int(self._clock() * 1e6) - time

    def telling(self, nbytes: int = 0) -> AbstractContextManager[None]:
        """A block that changes rows: the log is told at its end. Raises `StorageError`, before anything changes, if it
        has no room for so many bytes."""
        if self.log is None:
            return _UNTOLD
        self.log.check(nbytes)
        return self.log.telling()

    def _tell(self, kind: Kind, values: Mapping[str, Any]) -> None:
        if self.log is not None:
            self.log.note(RowChange(kind, self.now(), values))

    def _record_bytes(self, ids: torch.Tensor) -> int:
        """At most the bytes that the log gets of a look-up."""
        count = len(ids)
        nbytes = 24 * count if self.gate is None else 24 * count + self.gate.record_bytes(count)
        if self._at_capacity is not None and len(self.map) + count > self._most:
            nbytes += 8 * max(count, int(self._at_capacity.share * self._most))
        return nbytes

    def tell_images(self, numbers: torch.Tensor) -> None:
        """Tells what rows are now, with what eviction keeps of them."""
        self.watchers.written(numbers)
        if self.log is not None:
            self.log.note(self.images(numbers, life=True))

    def values(self, numbers: torch.Tensor) -> torch.Tensor:
        """Copies of rows, [n, dim]."""
        return self._kernels.read(self._rows, numbers)

    def images(self, numbers: torch.Tensor, life: bool = False) -> RowChange:
        """What rows, int64 [n], are now."""
        states = {f"state.{name}": each.read(numbers) for name, each in self._rows.states.items()}
        values = {"ids": self.map.ids_of(numbers), "values": self._rows.values.read(numbers), **states}
        if life and self.seen is not None:
            values |= self.seen.read(numbers)
        return RowChange("images", self.now(), values)

    def redo(self, change: RowChange) -> None:
        """Makes a change again. Rows that are there already are not added, and those that are not have no images."""
        values = change.values
        self.go_on(change.time)
        match change.kind:
            case "added":
                used, ids = self.map.rows, values["ids"]
                numbers, new = self.map.find_or_add(ids, self._most)
                if new.any():
                    self._begin(numbers[new], ids[new], used, change.time)
            case "removed":
                self._remove(values["ids"])
            case "cleared":
                self._clear()
            case "admission" if self.gate is not None:
                self.gate.redo(values)
            case "seen" | "images":
                self._write(self.map.find(values["ids"]), change)

    def _write(self, numbers: torch.Tensor, change: RowChange) -> None:
        values, there = change.values, numbers >= 0
        columns = {name: each[there] for name, each in values.items()}
        numbers = numbers[there]
        if change.kind == "seen":
            columns["seen"] = torch.full((len(numbers),), change.time, device="cpu")
        elif change.kind == "images":
            self.watchers.changing(numbers)
            self.watchers.written(numbers)
            self._rows.values.write(numbers, columns["values"])
            for name, storage in self._rows.states.items():
                storage.write(numbers, columns[f"state.{name}"])
        if self.seen is not None:
            self.seen.write(numbers, columns)

    @property
    def nbytes(self) -> int:
        """Bytes in use by rows, by what the optimizer keeps for them, by the map, and by the filter of new ids."""
        return self.map.rows * self._row_bytes + self.map.memory + (0 if self.gate is None else self.gate.memory)

    def _find_or_admit(self, ids: torch.Tensor) -> torch.Tensor:
        if self.gate is None or self.default is None:
            return self._add(ids, ids)
        numbers = self.map.find(ids)
        missing = numbers < 0
        if missing.any():
            wanted = ids[missing]
            new, inverse = self._kernels.unique(wanted)
            admitted = self.gate.admits(new)
            if self.log is not None:
                self._tell("admission", self.gate.change(new))
            added = torch.full((len(new),), self.default, device="cpu")
            added[admitted] = self._add(new[admitted], ids)
            numbers[missing] = added[inverse]
            self.statistics.refused += int((~admitted)[inverse].sum())
        return numbers

    def _add(self, ids: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """The rows of ids; all that are missing are added, and the rows of `kept` do not make room for them."""
        # Rows that have been removed take memory until other ids get their numbers.
        used = self.map.rows
        most = min(self._most, used + self.budget.room(self._row_bytes + MAP_BYTES, len(ids)))
        try:
            numbers, new = self.map.find_or_add(ids, most)
        except TooLargeError:
            # The map may have made room for ids that were taken back.
            self.budget.note(self, self.nbytes, self.map.rows)
            if not self._make_room(ids, kept, most):
                raise self._exceeded(ids, most) from None
            used = self.map.rows
            numbers, new = self.map.find_or_add(ids, most)
        if new.any():
            now = self.now()
            if self.log is not None:
                self.log.note(RowChange("added", now, {"ids": ids[new]}))
            self._begin(numbers[new], ids[new], used, now)
            self.statistics.added += int(new.sum())
        return numbers

    def _begin(self, numbers: torch.Tensor, ids: torch.Tensor, used: int, now: int) -> None:
        """Begins the rows of new ids, added at a time. So many rows were ever used before."""
        self._rows.grow(self.map.rows)
        self._kernels.begin(self._rows, numbers, ids, fresh=bool((numbers >= used).all()))
        self.watchers.written(numbers)
        if self.seen is not None:
            self.seen.begin(self.map.rows, numbers, now)
        self.budget.note(self, self.nbytes, self.map.rows)

    def _exceeded(self, ids: torch.Tensor, most: int) -> PsError:
        """The error for ids that would need more rows than there may be."""
        if most < self._most:
            return self.budget.exceeded(self._title, self._row_bytes + MAP_BYTES)
        missing = len(self._kernels.unique(ids[self.map.find(ids) < 0])[0])
        where = f" on owner {self.budget.owner!r}" if self.budget.owner else ""
        if self._at_capacity is None:
            evicted = "have rows evicted (evict=tc.tables.Eviction(at_capacity=…))"
        else:
            evicted = (
                "give a smaller spare= to its Eviction, because rows that were looked up within the last "
                f"{self._at_capacity.spare:g} seconds make no room"
            )
        return TooLargeError(
            f"{self._title} has {len(self.map):,} rows{where}, and these ids need {missing:,} more: at most "
            f"{self._most:,} are allowed there. Make it with a larger max_rows, spread it over more owners, {evicted}, "
            "remove some, or admit fewer ids (admit=…)"
        )

    def _make_room(self, ids: torch.Tensor, kept: torch.Tensor, most: int) -> bool:
        """Removes rows until these ids have room, and some more; False if that is not possible."""
        if self._at_capacity is None:
            return False
        numbers = self.map.find(ids)
        needed = len(self.map) + len(self._kernels.unique(ids[numbers < 0])[0]) - most
        wanted = max(needed, int(self._at_capacity.share * most))
        going = self.evict(wanted + len(kept), dry_run=True)
        going = going[~torch.isin(going, kept)][:wanted]
        if len(going) < needed:
            return False
        self.statistics.evicted += self._remove(going)
        return True

    def _remove(self, ids: torch.Tensor) -> int:
        """Removes the rows of ids, and ends their keys. Returns how many there were."""
        if self.log is not None and len(ids):
            self._tell("removed", {"ids": ids})
        self.watchers.removing(ids)
        freed = self.map.remove(ids)
        self.watchers.removed(ids)
        self.generations.free(freed)
        if self.seen is not None:
            self.seen.forget(freed)
        return len(freed)

    def _note(self, numbers: torch.Tensor) -> None:
        assert self.seen is not None
        different, _ = self._kernels.unique(numbers)
        if self.default is not None:
            different = different[different != self.default]
        now = self.now()
        self.seen.note(different, now)
        self.watchers.looked_up(different)
        if self.log is not None:
            sightings = {name: each for name, each in self.seen.read(different).items() if name != "seen"}
            self.log.note(RowChange("seen", now, {"ids": self.map.ids_of(different), **sightings}))

    def _write_default(self) -> None:
        if self.default is not None:
            values = self._rows.values
            row = torch.full((1, values.width), self._default_value, dtype=values.dtype, device="cpu")
            values.write(torch.tensor([self.default], device="cpu"), row)
