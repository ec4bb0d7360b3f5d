"""Slots of a table that move from one owner to another while the table is used.

A program drives a move: it has the owner copy the rows of the slots, in blocks, and then what has changed since, and
puts both on the other owner. Then the owner closes the table for a moment, until no pass uses its rows, gives the last
changes, and releases the slots. That is the point at which they change their owner: `Routing.moves` counts it, and the
other owner takes the slots as soon as anybody shows it a routing that says so. Before, rows that it was given are
ignored; afterwards, those that stayed behind are. So there is one owner of a slot at each moment, whoever is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ps_service.tables import applied_steps
from ps_service.tables.answers import PIECE_BYTES
from ps_service.tables.row_reading import ids_between, rows_with
from ps_service.tables.shard import TURN_ROWS
from ps_service.tables.slot_changes import SlotChanges
from ps_service.tables.stand_in import RowsOfTable
from ps_wire.decorators import remote
from ps_wire.errors import InvalidArgumentError, RowsMovedError
from ps_wire.shown import shown
from ps_wire.tables.routing import CLOSED, LONGEST_CLOSED, SLOTS, Routing, slots_of

if TYPE_CHECKING:
    from ps_service.tables.applied_steps import AppliedStep
    from ps_service.tables.shard import Block, TableShard


class Leaving:
    """A move of slots, bool [SLOTS], away from this owner, by its id. It is `quiet` if no pass has used the rows since
    the table was closed, which ends at `closed_until`, on the monotonic clock. Later moves have larger turns."""

    def __init__(self, move: str, slots: torch.Tensor, to: str, shard: TableShard) -> None:
        self.move, self.slots, self.to = move, slots, to
        self.changes = SlotChanges(shard.watchers, slots)
        self.turn = time.time_ns()
        self.closed_until = 0.0
        self.quiet = self.released = False


class Arriving(NamedTuple):
    """A move of slots, bool [SLOTS], to this owner, by its id, with its turn at the owner that has them. One that was
    begun before this owner has started again does not go on, but the other owner may have released its slots."""

    move: str
    turn: int
    slots: torch.Tensor
    goes_on: bool = True


class MovingTable(RowsOfTable):
    """Which slots of a table this owner has, and their moves. `mark` is that of its slots in the routing, 0 if none has
    moved, or negative while the table is closed: look-ups are routed with the same, or are examined."""

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self.mark = 0
        # Of these steps, others were applied here to all rows.
        self.applied = applied_steps.Applied()
        # Whether rows of a move may be there that has ended with an earlier process.
        self._was_restored = False
        self._leaving: Leaving | None = None
        # The latest move of each owner that has some of its slots come here. Replaced, never changed.
        self.arrivals: Mapping[str, Arriving] = {}

    def take(self, routing: Routing) -> None:
        """Has another routing from now on."""
        with self.shard.lock:
            if routing.moves is not None and not routing.slots(self.owner).equal(self.routing.slots(self.owner)):
                self.shard.feed.begin_epoch()
            self.routing = routing
            # If one of its slots is another owner's, then it is over: this owner's, or not released ever.
            over = [by for by, each in self.arrivals.items() if (each.slots & ~routing.slots(by)).any()]
            if over:
                self.arrivals = {by: each for by, each in self.arrivals.items() if by not in over}
            if self.mark != CLOSED:
                self.mark = self._own_mark()

    def _own_mark(self) -> int:
        # Without slots, it is the same for all.
        return 0 if self.routing.moves is None else self.routing.marks.get(self.owner, 1)

    def ownership(self) -> dict[str, Any]:
        """The routing, the steps that were applied to some of the slots, and what arrives, as plain values."""
        arriving = [(by, each.move, each.turn, each.slots) for by, each in self.arrivals.items()]
        return {
            **self.routing.to_plain(),
            "applied": applied_steps.to_plain(self.applied),
            "arriving": arriving,
        }

    def take_ownership(self, plain: Mapping[str, Any]) -> None:
        """Continues with what `ownership` has given, here or in an earlier process."""
        self.applied = applied_steps.from_plain(plain.get("applied", ()))
        self.arrivals = {by: Arriving(move, turn, slots, False) for by, move, turn, slots in plain.get("arriving", ())}
        self.take(Routing.from_plain(plain))

    def note_applied(self, own: torch.Tensor, found: Callable[[], list[AppliedStep]]) -> None:
        """If this owner has got slots besides its own ones of before, what it has applied was applied to those."""
        if (self.routing.slots(self.owner) & ~own).any():
            self.applied = applied_steps.added(self.applied, dict.fromkeys(found(), own))

    @property
    def may_have_others(self) -> bool:
        """Whether there may be rows of slots that this owner does not have."""
        return self.routing.moves is not None or bool(self.arrivals) or self._was_restored

    def restored(self, plain: Mapping[str, Any]) -> None:
        """Continues with what `ownership` has given in an earlier process, and with its rows."""
        self._was_restored = True
        self.take_ownership(plain)

    def count_own(self) -> int:
        """The number of rows of slots that this owner has."""
        if not self.may_have_others:
            return self.shard.size
        own, all_rows, begin = 0, 0, 0
        while begin is not None:
            ids, begin = ids_between(self.shard, begin, TURN_ROWS)  # type: ignore[assignment]
            own, all_rows = own + int(self.are_own(ids).sum()), all_rows + len(ids)
        if own == all_rows:
            self._was_restored = False
        return own

    def are_own(self, ids: torch.Tensor) -> torch.Tensor:
        """Which of some ids belong to slots of this owner, bool [n]."""
        return self.routing.slots(self.owner)[slots_of(ids)]

    def examine(self, mark: int, ids: torch.Tensor, goes_on: bool = False) -> None:
        """Checks a request about ids that was routed with another mark than the table has. Raises `RowsMovedError` if
        one of them belongs to another owner, or the table is closed, unless the request is of a pass that `goes_on`:
        it has used the table before, so that this has to stay as it is until the pass has ended."""
        if self.mark == CLOSED and not goes_on:
            self._open_in_time()
            if self.mark == CLOSED:
                raise self._is_closed()
        if mark != self.mark and not self.are_own(ids).all():
            raise RowsMovedError(f"rows of {self} have moved from owner {self.owner!r} to another one")

    def check_mark(self, mark: int) -> None:
        """Raises `RowsMovedError` if the table is closed, or this owner has other slots than a mark says."""
        if mark == self.mark:
            return
        self.examine(mark, torch.empty(0, dtype=torch.int64, device="cpu"))
        if mark not in (self.mark, self.routing.mark(self.owner)):
            raise RowsMovedError(f"rows of {self} have moved from or to owner {self.owner!r}")

    def check_routing(self, mark: int) -> None:
        """As `RowsOfTable.check_routing`. A pass that has used the table steps also while that is closed."""
        if mark != self._own_mark() and (not mark or mark != self.routing.mark(self.owner)):
            raise RowsMovedError(f"rows of {self} have moved from or to owner {self.owner!r}; no step was made")

    def check_ids(self, ids: torch.Tensor) -> None:
        """Raises `RowsMovedError` if ids belong to another owner, or the table is closed."""
        if self.mark:
            self.examine(0, ids)

    def _is_closed(self) -> RowsMovedError:
        return RowsMovedError(f"rows of {self} are about to move from owner {self.owner!r} to another one")

    def _open_in_time(self) -> None:
        """Opens the table if it was closed for as long as it may be."""
        with self.shard.lock:
            leaving = self._leaving
            if leaving is None or time.monotonic() >= leaving.closed_until:
                self._open()

    def _open(self) -> None:
        if self._leaving is not None:
            self._leaving.quiet = False
        self.mark = self._own_mark()

    # What both owners are asked

    @remote(role="reader")
    def routing_now(self) -> Any:
        """Which owner has which slots, as `Routing.to_plain`; None while the table is closed."""
        if self.mark == CLOSED:
            self._open_in_time()
        return None if self.mark == CLOSED else self.routing.to_plain()

    @remote(role="admin")
    def agree(self, routing: Any, found: Callable[[], list[AppliedStep]] = list) -> Any:
        """Takes from a routing what it knows better, and returns its own, closed or not. What this owner has itself
        leaves it by `release` alone. If it gets slots, the steps that it has applied, which `found` takes from what
        knows them, were applied to the slots of before."""
        told = Routing.from_plain(routing)
        with self.shard.lock:
            own = self.routing.slots(self.owner)
            merged = self.routing.merged(told)
            if merged is not self.routing and not (own & ~merged.slots(self.owner)).any():
                self.take(merged)
                self.note_applied(own, found)
        return self.routing.to_plain()

    @remote(role="admin")
    def purge(self, begin: int, move: str = "") -> int | None:
        """Removes some rows of slots that this owner does not have, from the row with a number on, but for those that
        arrive by another move, which may have been released. Returns where to go on; None at the end."""
        if isinstance(begin, bool) or not isinstance(begin, int) or begin < 0:
            raise InvalidArgumentError(
                f"rows are removed from a number on that the last call has returned, not {shown(begin)}"
            )
        with self.shard.lock:
            block, following = ids_between(self.shard, begin, TURN_ROWS)
            kept = self.routing.slots(self.owner)
            for each in (each for each in self.arrivals.values() if each.move != move):
                kept = kept | each.slots
            gone = block[~kept[slots_of(block)]]
            if len(gone):
                self.shard.remove(gone)
        return following

    # The owner that slots leave

    @remote(role="admin")
    def used_with(self, found: Callable[[], list[str]] = list) -> list[str]:
        """What this owner has for the optimizer of the rows, and another one would lack, as `found` says."""
        return found()

    @remote(role="admin")
    def begin_move(self, move: str, slots: torch.Tensor, to: str) -> int:
        """Begins to move slots, bool [SLOTS], to another owner, in the place of a move that goes on. Returns its turn.
        Raises `RowsMovedError` if this owner does not have all of them."""
        _check_slots(slots)
        if not isinstance(move, str) or not move or not isinstance(to, str) or to in ("", self.owner):
            raise InvalidArgumentError("slots move to another owner, by its name, and a move has an id")
        with self.shard.lock:
            if (slots & ~self.routing.slots(self.owner)).any():
                raise RowsMovedError(
                    f"owner {self.owner!r} does not have all of these slots of {self}: another program moves them, too"
                )
            self._end_move()
            self._leaving = Leaving(move, slots, to, self.shard)
            self._leaving.changes.begin()
            return self._leaving.turn

    @remote(role="admin")
    def moving_rows(self, move: str, begin: int) -> tuple[Block, int | None]:
        """Copies of some rows of the slots, with all that belongs to them, from the row with a number on; and where to
        go on, None at the end."""
        leaving = self._left_by(move)
        block, following = self.shard.copies(begin, max(1, PIECE_BYTES // self.shard.row_bytes))
        chosen = leaving.slots[slots_of(block["ids"])]
        return {name: each[chosen] for name, each in block.items()}, following

    @remote(role="admin")
    def changed_rows(self, move: str) -> tuple[Block, torch.Tensor, int]:
        """The rows of the slots that have changed since they were copied, as they are now, and the ids of those that
        have gone; and how many more there are."""
        leaving = self._left_by(move)
        with self.shard.lock:
            ids, left = leaving.changes.take(max(1, PIECE_BYTES // self.shard.row_bytes))
            block, gone = rows_with(self.shard, ids)
        return block, gone, left

    @remote(role="admin")
    def close(self, move: str, seconds: float) -> None:
        """Closes the table for some seconds: no pass may begin to use its rows, and nothing else changes them."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_CLOSED:
            raise InvalidArgumentError(
                f"a table is closed for at most {LONGEST_CLOSED:g} seconds, not {shown(seconds)}"
            )
        leaving = self._left_by(move)
        with self.shard.lock:
            leaving.closed_until, leaving.quiet = time.monotonic() + seconds, False
            self.mark = CLOSED

    @remote(role="admin")
    def is_quiet(self, move: str, found: Callable[[], bool] = lambda: True) -> bool:
        """Whether no pass has used the rows since the table was closed. `found` says whether none does now."""
        leaving = self._left_by(move)
        if self.mark != CLOSED or not found():
            return False
        with self.shard.lock:
            leaving.quiet = self.mark == CLOSED and time.monotonic() < leaving.closed_until
        return leaving.quiet

    @remote(role="admin")
    def release(self, move: str) -> Any:
        """Gives the slots away, and returns the routing; None, with nothing changed, if the table is not closed any
        more, or was not quiet, or rows have changed since the last that were given."""
        with self.shard.lock:
            leaving = self._left_by(move)
            _, changed = leaving.changes.take(0)
            if not leaving.quiet or time.monotonic() >= leaving.closed_until or changed:
                return None
            leaving.changes.end()
            leaving.released = True
            self.take(self.routing.moved(leaving.slots, leaving.to))
        return self.routing.to_plain()

    @remote(role="admin")
    def reopen(self, move: str, end: bool) -> bool:
        """Opens the table again, and maybe ends a move; returns whether it has, before the slots were released. Does
        nothing if another move has begun."""
        with self.shard.lock:
            leaving = self._leaving
            if leaving is None or leaving.move != move:
                return False
            self._open()
            if end:
                self._end_move()
            return end and not leaving.released

    def _end_move(self) -> None:
        if self._leaving is not None:
            self._leaving.changes.end()
            self._leaving = None
            self._open()

    def _left_by(self, move: str) -> Leaving:
        leaving = self._leaving
        if leaving is None or leaving.move != move or not leaving.changes.goes_on():
            raise RowsMovedError(f"owner {self.owner!r} has ended this move of rows of {self}, or has started again")
        return leaving

    @remote(role="admin")
    def applied_steps(self, found: Callable[[], list[AppliedStep]] = list) -> Any:
        """The steps of passes that may be run again which were applied to rows, with their slots, as plain values.
        `found` has those that were applied to all rows here."""
        with self.shard.lock:
            here = dict.fromkeys(found(), self.routing.slots(self.owner))
            return applied_steps.to_plain(applied_steps.added(self.applied, here))

    # The owner that slots come to

    @remote(role="admin")
    def begin_arrival(self, move: str, slots: torch.Tensor, source: str, turn: int) -> None:
        """Takes rows of slots, bool [SLOTS], from now on, in the place of an earlier move away from the same owner, the
        source, which has said its turn: it does not release the slots of that any more. Raises `RowsMovedError` if the
        source does not have the slots, or has begun a later move."""
        _check_slots(slots)
        if not isinstance(source, str) or isinstance(turn, bool) or not isinstance(turn, int):
            raise InvalidArgumentError("slots come from an owner, which has said their turn")
        with self.shard.lock:
            if (slots & self.routing.slots(self.owner)).any():
                raise RowsMovedError(
                    f"owner {self.owner!r} has some of these slots of {self} already: another program moves them, too, "
                    "or it has an earlier table of that name"
                )
            earlier = self.arrivals.get(source)
            is_late = earlier is not None and earlier.turn > turn
            if is_late or (slots & ~self.routing.slots(source)).any():
                raise RowsMovedError(f"another program moves slots of {self} from owner {source!r}, too")
            self.arrivals = {**self.arrivals, source: Arriving(move, turn, slots)}

    @remote(role="admin")
    def end_arrival(self, move: str) -> None:
        """Keeps rows no more that have come by a move which has ended, and was not released."""
        with self.shard.lock:
            self.arrivals = {by: each for by, each in self.arrivals.items() if each.move != move}

    @remote(role="admin")
    def stage(self, move: str, block: Any, gone: torch.Tensor) -> None:
        """Puts rows of the slots in the place of those that were put before, and removes those that have gone."""
        with self.shard.lock:
            arriving = self._arriving_by(move)
            ids = torch.cat([block["ids"], gone])
            if len(ids) and not arriving.slots[slots_of(ids)].all():
                raise InvalidArgumentError("these are rows of other slots than those that arrive")
            if len(gone):
                self.shard.remove(gone)
            if len(block["ids"]):
                self.shard.put(block)

    @remote(role="admin")
    def take_applied(self, move: str, steps: Any) -> None:
        """Takes what the other owner has said by `applied_steps`: these steps are not applied again to the rows of the
        slots that arrive."""
        with self.shard.lock:
            told = applied_steps.from_plain(steps, self._arriving_by(move).slots)
            self.applied = applied_steps.added(self.applied, told)

    @remote(role="admin")
    def is_ready(self, move: str) -> bool:
        """Whether this owner has all that it was given by a move."""
        self._arriving_by(move)
        return True

    def lose_arrivals(self) -> None:
        """Rows that have arrived were removed, with all others."""
        self.arrivals = {}

    def _arriving_by(self, move: str) -> Arriving:
        for each in self.arrivals.values():
            if each.move == move and each.goes_on:
                return each
        raise RowsMovedError(f"owner {self.owner!r} has ended this move of rows of {self}, or has started again")


def _check_slots(slots: Any) -> None:
    if not isinstance(slots, torch.Tensor) or slots.dtype != torch.bool or slots.shape != (SLOTS,):
        raise InvalidArgumentError(f"slots are {SLOTS} times whether one is chosen")
