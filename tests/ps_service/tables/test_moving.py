"""Moves of slots in any order of their steps, with programs that end and owners that are killed: one owner of each row,
and no update lost. Without a network and without a clock."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_service.tables import moving
from ps_service.tables.hosted_table import HostedTable
from ps_wire.errors import InvalidArgumentError, RowsMovedError
from ps_wire.tables.options import SGD, Zeros, to_plain
from ps_wire.tables.routing import SLOTS, Routing, slots_of

NAMES = ("a", "b", "c")
IDS = torch.arange(24)


def made(owner: str) -> HostedTable:
    table = HostedTable(
        name="items",
        dim=1,
        rows=None,
        dtype=torch.float32,
        init=to_plain(Zeros()),
        optimizer=to_plain(SGD(1.0)),
        seed=0,
        max_rows=None,
        groups=[],
        owners=["a", "b"],
    )
    table.owner = owner
    return table


class Group:
    """Owners of a table that keep what they do, trainers with routings of their own, and moves that have begun."""

    def __init__(self) -> None:
        self.tables = {owner: made(owner) for owner in NAMES}
        self.trainers = [Routing.even(["a", "b"]) for _ in range(2)]
        self.moves: list[Iterator[None]] = []
        self.expected = dict.fromkeys(IDS.tolist(), 0.0)
        self._numbers = itertools.count(1)

    def kill(self, owner: str) -> None:
        """Starts an owner again with what it had."""
        state = self.tables[owner].state_copy()
        table = self.tables[owner] = made(owner)
        table.load_state_dict({**state, "time": 0})

    def follow(self, trainer: int, owner: str) -> None:
        """As `Follower.follow`."""
        while (told := self.tables[owner].routing_now()) is None:
            self.tables[owner]._leaving.closed_until = 0.0  # type: ignore[union-attr]
        own, theirs = self.trainers[trainer], Routing.from_plain(told)
        merged = own.merged(theirs)
        if theirs.merged(merged) is not theirs:
            self.tables[owner].agree(merged.to_plain())
        self.trainers[trainer] = merged

    def update(self, trainer: int, id: int, remove: bool = False) -> None:
        """Has a trainer add one to a row, or remove it: it reads it, and puts it."""
        ids = torch.tensor([id])
        for _ in range(8):
            routing = self.trainers[trainer]
            owner = routing.owners[int(routing.of_slot[slots_of(ids)])]
            table, mark = self.tables[owner], routing.marks.get(owner, 0)
            try:
                (row,) = table.look_up([(None, ids, None, None, 1, mark)])
                table.remove(ids) if remove else table.put({"ids": ids, "values": row + 1})
            except RowsMovedError:
                self.follow(trainer, owner)
                continue
            assert row.item() == self.expected[id]
            self.expected[id] = 0.0 if remove else self.expected[id] + 1
            return
        raise AssertionError(f"no owner takes {id}")

    def move(self, source: str, target: str, part: int) -> Iterator[None]:
        """The steps of a move of some slots that an owner has, as `Move` takes them."""
        move, one, other = str(next(self._numbers)), self.tables, self.tables
        slots = one[source].routing.slots(source) & (torch.arange(SLOTS) % 3 != part)
        if source == target or not slots.any():
            return
        routing = one[source].routing_now()
        if routing is None:
            return
        turn = one[source].begin_move(move, slots, target)
        yield
        other[target].agree(routing)
        yield
        other[target].begin_arrival(move, slots, source, turn)
        yield
        begin: int | None = 0
        while begin is not None:
            begin = other[target].purge(begin, move)
        yield
        block, _ = one[source].moving_rows(move, 0)
        yield
        other[target].stage(move, block, torch.empty(0, dtype=torch.int64))
        yield
        one[source].close(move, moving.LONGEST_CLOSED)
        yield
        if not one[source].is_quiet(move):
            return
        yield
        block, gone, left = one[source].changed_rows(move)
        yield
        assert not left
        other[target].stage(move, block, gone)
        yield
        other[target].is_ready(move)
        yield
        told = one[source].release(move)
        yield
        if told is not None:
            other[target].agree(told)
            yield
        one[source].reopen(move, True)
        yield
        begin = 0
        while begin is not None:
            begin = one[source].purge(begin, move)

    def check(self) -> None:
        """Checks that no slot has two owners, and finally that trainers find all rows as they were updated."""
        owned = torch.stack([each.routing.slots(owner) for owner, each in self.tables.items()]).sum(0)
        assert int(owned.max()) <= 1
        ids = [int(id) for each in self.tables.values() for id in self._rows(each)]
        assert len(ids) == len(set(ids))

    @staticmethod
    def _rows(table: HostedTable) -> Any:
        found, begin = [], 0
        while begin is not None:
            block, begin = table.read_block(begin, False, table.mark)  # type: ignore[assignment]
            found.append(block["ids"])
        return torch.cat(found)


steps = st.one_of(
    st.tuples(st.just("update"), st.integers(0, 1), st.sampled_from(IDS.tolist()), st.booleans()),
    st.tuples(st.just("move"), st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(0, 2)),
    st.tuples(st.just("go on"), st.integers(0, 3), st.integers(1, 12)),
    st.tuples(st.just("kill"), st.sampled_from(NAMES)),
    st.tuples(st.just("forget"), st.integers(0, 3)),
    st.tuples(st.just("follow"), st.integers(0, 1), st.sampled_from(NAMES)),
)


@given(st.lists(steps, min_size=8, max_size=60))
def test_any_order_of_moves_updates_and_kills(program: list[Any]) -> None:
    group = Group()
    for what, *args in program:
        match what:
            case "update":
                group.update(*args)
            case "move":
                group.moves.append(group.move(*args))
            case "kill":
                group.kill(*args)
            case "follow":
                group.follow(*args)
            case "forget" if args[0] < len(group.moves):
                del group.moves[args[0]]
            case "go on" if args[0] < len(group.moves):
                try:
                    for _ in range(args[1]):
                        next(group.moves[args[0]])
                except (StopIteration, RowsMovedError):
                    del group.moves[args[0]]
        group.check()
    for trainer, id in itertools.product(range(2), IDS.tolist()):
        group.update(trainer, id)


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("begin_move", ("m", torch.ones(3, dtype=torch.bool), "b")),
        ("begin_move", ("m", torch.ones(SLOTS), "b")),
        ("begin_move", ("", torch.zeros(SLOTS, dtype=torch.bool), "b")),
        ("begin_move", ("m", torch.zeros(SLOTS, dtype=torch.bool), "a")),
        ("begin_arrival", ("m", [True] * SLOTS, "b", 1)),
        ("begin_arrival", ("m", torch.zeros(SLOTS, dtype=torch.bool), "b", None)),
        ("begin_arrival", ("m", torch.zeros(SLOTS, dtype=torch.bool), None, 1)),
        ("purge", (-1,)),
        ("purge", (True,)),
        ("agree", ({"version": 2},)),
        ("agree", (None,)),
    ],
)
def test_what_other_clients_send_is_checked(method: str, args: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        getattr(made("a"), method)(*args)


@pytest.mark.parametrize("seconds", [0, -1.0, 11.0, float("nan"), True, "1"])
def test_a_table_is_closed_for_a_short_time(seconds: Any) -> None:
    table = made("a")
    table.begin_move("m", table.routing.slots("a"), "c")
    with pytest.raises(InvalidArgumentError):
        table.close("m", seconds)


def test_slots_are_released_only_by_a_table_that_was_closed_and_quiet() -> None:
    table = made("a")
    table.begin_move("m", table.routing.slots("a"), "c")
    assert not table.is_quiet("m")
    assert table.release("m") is None
    table.close("m", 10.0)
    assert table.release("m") is None
    assert not table.is_quiet("m", lambda: False)
    assert table.release("m") is None
    assert table.is_quiet("m")
    table.reopen("m", False)
    assert table.release("m") is None
    table.close("m", 10.0)
    assert table.release("m") is None  # it was open
    assert table.is_quiet("m")
    table.shard.remove(IDS)
    assert table.release("m") is None  # rows have changed
    table.changed_rows("m")
    assert Routing.from_plain(table.release("m")).owners == ("b", "c")


def test_rows_that_an_earlier_move_has_left_behind_are_gone() -> None:
    source, target = made("a"), made("c")
    source.put({"ids": IDS, "values": torch.ones(len(IDS), 1)})
    slots = source.routing.slots("a")
    for move in ("first", "second"):
        turn = source.begin_move(move, slots, "c")
        target.begin_arrival(move, slots, "a", turn)
        assert target.purge(0, move) is None
        block, _ = source.moving_rows(move, 0)
        target.stage(move, block, torch.empty(0, dtype=torch.int64))
        source.remove(IDS[:20])
    source.changed_rows("second")
    source.close("second", 10.0)
    assert source.is_quiet("second")
    target.agree(source.release("second"))
    assert target.count(target.mark) == int(source.routing.slots("c")[slots_of(IDS[20:])].sum())


def test_rows_of_other_slots_do_not_arrive() -> None:
    table = made("c")
    slots = torch.zeros(SLOTS, dtype=torch.bool)
    table.begin_arrival("m", slots, "a", 1)
    with pytest.raises(InvalidArgumentError):
        table.stage("m", {"ids": IDS, "values": torch.ones(len(IDS), 1)}, torch.empty(0, dtype=torch.int64))
    with pytest.raises(RowsMovedError):
        table.stage("another", {}, torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize("why", ["clear", "another", "restart"])
def test_an_owner_that_has_lost_what_it_was_given_is_not_ready(why: str) -> None:
    table = made("c")
    slots = table.routing.slots("a")
    table.begin_arrival("m", slots, "a", 1)
    assert table.is_ready("m")
    if why == "clear":
        table.clear()
    elif why == "another":
        table.begin_arrival("later", slots, "a", 2)
    else:
        table = made("c")
    with pytest.raises(RowsMovedError, match="has ended this move"):
        table.is_ready("m")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_rows_that_arrive_are_removed_by_their_own_move_alone(is_restarted: bool) -> None:
    """An owner that has started again does not know whether the move was released meanwhile."""
    table = made("c")
    slots = table.routing.slots("a")
    table.begin_arrival("m", slots, "a", 1)
    ids = IDS[slots[slots_of(IDS)]]
    table.stage("m", {"ids": ids, "values": torch.ones(len(ids), 1)}, torch.empty(0, dtype=torch.int64))
    if is_restarted:
        state, table = {**table.state_copy(), "time": 0}, made("c")
        table.load_state_dict(state)
    assert table.purge(0, "another") is None
    assert table.shard.size == len(ids) > 0 and table.count() == 0
    assert table.purge(0, "m") is None
    assert table.shard.size == 0


def test_rows_of_a_move_that_has_failed_are_removed() -> None:
    table = made("c")
    table.begin_arrival("m", table.routing.slots("a"), "a", 1)
    table.put({"ids": IDS, "values": torch.ones(len(IDS), 1)})
    table.end_arrival("m")
    assert table.purge(0, "another") is None
    assert table.shard.size == 0


def test_an_earlier_move_of_an_owner_does_not_replace_a_later_one() -> None:
    table = made("c")
    slots = table.routing.slots("a")
    table.begin_arrival("later", slots, "a", 2)
    with pytest.raises(RowsMovedError, match="another program moves slots"):
        table.begin_arrival("earlier", slots, "a", 1)
    assert table.is_ready("later")


def test_slots_come_only_from_the_owner_that_has_them() -> None:
    table = made("c")
    table.agree(table.routing.moved(table.routing.slots("a"), "b").to_plain())
    with pytest.raises(RowsMovedError, match="another program moves slots"):
        table.begin_arrival("m", Routing.even(["a", "b"]).slots("a"), "a", 1)
