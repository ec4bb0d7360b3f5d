"""The rows of a table that one owner hosts, and their restores: of two at once, the rows of one alone stay."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.tables.checks import checked_ids, checked_offsets
from ps_service.tables.pinned_part import PinnedPart
from ps_service.tables.preparing import PREPARATION
from ps_service.tables.reading import ReadTable
from ps_service.tables.shard import TURN_ROWS, TableShard
from ps_service.tables.stand_in import AllRows, LookUp, Pool
from ps_wire.decorators import hosted, remote
from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError
from ps_wire.runtime.locks import ReportingLock
from ps_wire.shown import shown
from ps_wire.tables import lifecycle, options
from ps_wire.tables.routing import Routing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MOST_NAME: Final = 256
"""Longest name of a table."""

MOST_GIVEN: Final = 1 << 40
"""More ids than one look-up can have."""


class Wanted:
    """What is looked up in one table."""

    def __init__(self, table: HostedTable, part: Any, going_on: Sequence[Any]) -> None:
        if not isinstance(part, tuple) or not 4 <= len(part) <= 6:
            raise InvalidArgumentError("a part of a look-up is a tuple of table, ids, offsets and weights")
        other, ids, offsets, weights, *given = part
        self.table = table if other is None else other.local_value()
        if not isinstance(self.table, HostedTable):
            raise InvalidArgumentError("only tables can be looked up in")
        if not isinstance(ids, torch.Tensor) or not isinstance(offsets, torch.Tensor | None):
            raise InvalidArgumentError("ids and offsets are tensors")
        # Trainers send ids as int32 where those have the same values.
        self.ids = checked_ids(ids.long() if ids.dtype is torch.int32 else ids, self.table.shard.rows)
        self.offsets = None if offsets is None else checked_offsets(offsets, len(ids))
        if weights is not None and (
            offsets is None
            or not isinstance(weights, torch.Tensor)
            or weights.shape != ids.shape
            or not weights.is_floating_point()
        ):
            raise InvalidArgumentError("weights are floating point numbers, one for each id of bags")
        self.weights: torch.Tensor | None = weights
        # It is counted, and nothing else.
        self.given = given[0] if given else len(ids)
        if (offsets is not None and len(given) == 1) or type(self.given) is not int:
            raise InvalidArgumentError("what different ids were made of is a number of ids")
        if not len(ids) <= self.given < MOST_GIVEN:
            raise InvalidArgumentError("different ids were made of at least as many")
        # That of the routing by which they were sent here, and that of the table before it is looked up.
        mark, self.mark = given[1] if len(given) > 1 else 0, self.table.mark
        if mark != self.mark:
            self.table.examine(mark, self.ids, self.table in going_on)

    @property
    def answer_bytes(self) -> int:
        """Bytes of the answer."""
        shard = self.table.shard
        if self.offsets is None:
            return len(self.ids) * shard.dim * shard.dtype.itemsize
        return len(self.offsets) * shard.dim * 4

    def found(self, recorded: bool) -> torch.Tensor:
        """Looks it up."""
        return self.table.found(self.ids, self.offsets, self.weights, self.given, recorded)


class Restores:
    """Which restore puts rows into an owner's part of a table: the one that has begun last. Its number, which the first
    of its owners gives and the others are told, is larger on all owners, so exactly one of several ends. Checkpoints
    have the `latest`, 0 if there was none. The clock counts microseconds since 1970: numbers grow also if that was
    lost."""

    def __init__(self, title: str, clock: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._title: Final = title
        self._clock: Final = clock
        # Held while rows are put, so that none of an earlier restore come after a later one has begun.
        self._lock: Final = ReportingLock()
        self.latest = 0

    def begin(self, number: int, clear: Callable[[], None]) -> int:
        """Begins a restore, which removes all rows with `clear`. Returns its number; given 0, the owner chooses it.
        Raises `InvalidArgumentError`, with no row removed, if a later one has begun."""
        with self._lock:
            if type(number) is int and not number:
                number = max(self.latest + 1, self._clock())
            self._check(number)
            clear()
            return number

    @contextmanager
    def going_on(self, number: int) -> Iterator[None]:
        """A block that puts rows of a restore. Raises `InvalidArgumentError` if a later one has begun."""
        with self._lock:
            self._check(number)
            yield

    def _check(self, number: int) -> None:
        if type(number) is not int or number <= 0:
            raise InvalidArgumentError(f"the number of a restore is a whole number above 0, not {shown(number)}")
        if number < self.latest:
            raise InvalidArgumentError(
                f"another restore of {self._title} has begun meanwhile, and has removed the rows of this one: the "
                "table will have the rows of that one alone"
            )
        self.latest = number


@hosted
class HostedTable(ReadTable):
    """One owner's rows of a table, and their optimizer. Arguments are those of `trainer_client.Client.table`;
    `settings` has them, the same on all of its owners. Raises `InvalidArgumentError` if a setting does not fit."""

    def __init__(
        self,
        *,
        name: str,
        dim: int,
        rows: int | None,
        dtype: torch.dtype,
        init: Mapping[str, Any],
        optimizer: Mapping[str, Any],
        seed: int,
        max_rows: int | None,
        groups: Sequence[Any],
        owners: Sequence[str],
        admit: Mapping[str, Any] | None = None,
        evict: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME:
            raise InvalidArgumentError(f"the name of a table is a text of at most {MOST_NAME} characters")
        if not isinstance(seed, int) or isinstance(seed, bool) or not isinstance(dtype, torch.dtype):
            raise InvalidArgumentError("the seed of a table is a whole number, and its dtype a dtype of torch")
        self.settings: Final[dict[str, Any]] = {
            "name": name,
            "dim": dim,
            "rows": rows,
            "dtype": dtype,
            "init": init,
            "optimizer": optimizer,
            "seed": seed,
            "max_rows": max_rows,
            "groups": list(groups),
            "owners": list(owners),
            "admit": admit,
            "evict": evict,
        }
        super().__init__(Routing.even(owners))
        self.restores: Final = Restores(f"table {name!r}")
        eviction = None if evict is None else _option(evict, lifecycle.Eviction, "evict")
        self.shard = TableShard(
            dim,
            _option(optimizer, options.RowOptimizer, "optimizer"),
            _option(init, options.Initialisation, "init"),
            dtype,
            rows=rows,
            seed=seed,
            max_rows=max_rows,
            groups=[_option(each, options.RowGroup, "a group") for each in groups],
            admission=None if admit is None else _option(admit, lifecycle.Admission, "admit"),
            eviction=eviction,
            owners=len(owners),
        )
        PREPARATION.ensure()
        self.eviction: Final[lifecycle.Eviction | None] = eviction
        self.ttl = None if eviction is None else eviction.ttl
        self.backups = ()
        self.parameter = AllRows.of(self, dim)

    @remote(role="reader")
    def look_up(self, parts: Any) -> list[torch.Tensor]:
        """For each part of a look-up, here or in other tables, rows [n, dim], or sums of the rows of bags, float32.

        A part is a tuple: a reference to a table, None for this one; ids, int64 [n]; where each bag begins, None to get
        the row of each id; what the rows are multiplied with, None for 1; and for rows, if ids were left out that are
        there twice, how many there were; or this and the mark of this owner in the routing. No row is added: missing
        ones are read as they would begin. Raises `TooLargeError` if the answer would be too large.
        """
        wanted = self._wanted(parts, ())
        found = [each.found(recorded=False) for each in wanted]
        for each in wanted:
            if each.table.mark != each.mark:
                each.table.examine(each.mark, each.ids)
        return found

    def look_up_recorded(self, parts: Any, going_on: Sequence[Any]) -> list[torch.Tensor]:
        """The same in a pass, which has looked up in those of the tables that are `going_on` before. Missing rows are
        added; none is if a part does not fit, and if a table has too many, those of parts before are
        (`TooLargeError`). Who records it looks whether rows have moved meanwhile."""
        return [each.found(recorded=True) for each in self._wanted(parts, going_on)]

    def _wanted(self, parts: Any, going_on: Sequence[Any]) -> list[Wanted]:
        if not isinstance(parts, list):
            raise InvalidArgumentError("the parts of a look-up are a list")
        wanted = [Wanted(self, part, going_on) for part in parts]
        self.shard.population.budget.check_answer(sum(each.answer_bytes for each in wanted))
        return wanted

    def found(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
        given: int,
        recorded: bool,
    ) -> torch.Tensor:
        """Rows or sums of the rows of bags, of checked arguments as in a part of `look_up`; `given` ids were these."""
        if not recorded:
            return self.shard.look_up(ids, add=False) if offsets is None else self.shard.bag(ids, offsets, weights)
        found: torch.Tensor
        if offsets is None:
            found = LookUp.apply(self.parameter, self.shard, ids, given)  # type: ignore[no-untyped-call]
        else:
            found = Pool.apply(self.parameter, weights, self.shard, ids, offsets)  # type: ignore[no-untyped-call]
        return found

    @remote(role="admin")
    def evict(self, share: float | None, dry_run: bool, sample: int, mark: int = 0) -> tuple[int, torch.Tensor]:
        """Removes rows that have expired, in short turns, or this share of the rows. Returns how many, and ids of some,
        at most `sample`. With `dry_run` the rows stay. Raises `InvalidArgumentError` if the table has no eviction, or
        no part of it that this needs, or `share` is no part."""
        if self.eviction is None:
            raise InvalidArgumentError(f"no rows of {self} are evicted: make it with evict=tc.tables.Eviction(…)")
        if share is None and self.eviction.ttl is None:
            raise InvalidArgumentError(
                f"no rows of {self} expire, because its Eviction has no ttl=: say which part of the rows is to go, "
                "evict(0.1), or make it with evict=tc.tables.Eviction(ttl=…)"
            )
        if share is not None:
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
                raise InvalidArgumentError(f"the share of rows to evict is above 0 and at most 1, not {shown(share)}")
            with self.shard.lock:
                self.check_mark(mark)
                gone = self.shard.evict(int(share * self.shard.size), dry_run=dry_run)
            return len(gone), gone[:sample]
        self.check_mark(mark)
        count, begin, named = 0, 0, torch.empty(0, dtype=torch.int64, device="cpu")
        while begin is not None:
            gone, begin = self.shard.expire(begin, TURN_ROWS, dry_run=dry_run)  # type: ignore[assignment]
            count += len(gone)
            named = torch.cat([named, gone[: max(sample - len(named), 0)]])
        return count, named

    @remote(role="admin")
    def begin_restore(self, number: int, mark: int = 0) -> int:
        """Removes all rows for a restore, and ends one that goes on. Arguments and errors as for `Restores.begin`."""
        return self.restores.begin(number, partial(self.clear, mark))

    @remote
    def put(self, block: dict[str, torch.Tensor], restore: int | None = None) -> int:
        """Puts rows, of the restore with this number, in the place of those that their ids have, or adds them. Returns
        how many. Raises as `TableShard.put` and `Restores.going_on`, and `NonFiniteGradientError` for NaN or infinity,
        with no row changed."""
        whole = isinstance(block, dict) and {"ids", "values"} <= block.keys()
        if not whole or not all(_is_plain(name, each) for name, each in block.items()):
            raise InvalidArgumentError("rows to put are ids, values and what belongs to them, as tensors by name")
        if not all(bool(each.isfinite().all()) for each in block.values() if each.is_floating_point()):
            raise NonFiniteGradientError(f"a row holds NaN or infinity; {self} was not changed")
        with nullcontext() if restore is None else self.restores.going_on(restore), self.shard.lock:
            self.check_ids(checked_ids(block["ids"], self.shard.rows))
            self.shard.load([block], clear=False)
        return len(block["ids"])

    @remote(role="admin")
    def remove(self, ids: torch.Tensor) -> int:
        """Removes the rows of ids, an int64 vector. Returns how many there were."""
        if not isinstance(ids, torch.Tensor):
            raise InvalidArgumentError("ids are a tensor")
        with self.shard.lock:
            self.check_ids(checked_ids(ids, self.shard.rows))
            return self.shard.remove(ids)

    @remote(role="admin")
    def clear(self, mark: int = 0) -> None:
        """Removes all rows, and forgets sightings of ids without one."""
        with self.shard.lock:
            self.check_mark(mark)
            self.lose_arrivals()
            self.shard.clear()

    @remote(role="reader")
    def describe(self) -> dict[str, Any]:
        """What it was made with, and which owner has which rows."""
        return {"settings": self.settings, "routing": self.routing.to_plain()}

    def pin(self) -> PinnedPart:
        """The rows as they are now, which stay so for who has this."""
        return PinnedPart(self, self.settings)

    def state_dict(self) -> dict[str, Any]:
        """All rows, in blocks, which owner has which, what admission remembers, the number of the last restore, the
        time of the rows, at which their ages were so, and what is known of the latest changes."""
        now = self.shard.now()
        return {
            "routing": self.ownership(),
            "blocks": self.shard.views(now),
            "admission": self.shard.admission_state(),
            "restore": self.restores.latest,
            "time": now,
            "feed": self.feed_state(),
        }

    def state_copy(self) -> dict[str, Any]:
        """The same as a copy, block by block: rows may be looked up and added meanwhile, but not updated. So it says
        nothing of changes."""
        state = self.state_dict()
        return {**state, "feed": None, "blocks": list(self.shard.blocks(now=state["time"]))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes the rows of a checkpoint."""
        self.shard.load(state["blocks"], now=state.get("time", 0))
        if (admission := state.get("admission")) is not None:
            self.shard.load_admission(admission)
        self.restored(state["routing"])
        self.restores.latest = state.get("restore", 0)
        if (feed := state.get("feed")) is not None:
            self.shard.feed.load(feed)

    def __str__(self) -> str:
        return f"table {self.settings['name']!r}"


def _is_plain(name: Any, value: Any) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and value.dim() > 0
    )


def _option(plain: Any, kinds: Any, what: str) -> Any:
    found = options.from_plain(plain)
    if not isinstance(found, kinds):
        raise InvalidArgumentError(f"{what} of a table is not {shown(found)}")
    return found
