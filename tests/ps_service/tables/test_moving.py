"""Steps of moves of slots that owners take: what is refused, and what is left of moves that others end or replace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ps_service.tables.hosted_table import HostedTable
from ps_wire.errors import InvalidArgumentError, RowsMovedError
from ps_wire.tables.options import SGD, Zeros, to_plain
from ps_wire.tables.routing import SLOTS, Routing, slots_of

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


def restarted(table: HostedTable) -> HostedTable:
    """What an owner has of a table after it has started again."""
    again = made(table.owner)
    again.load_state_dict({**table.state_copy(), "time": 0})
    return again


@pytest.mark.parametrize("why", ["clear", "another", "restart", "made anew"])
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
        table = restarted(table) if why == "restart" else made("c")
    ids = IDS[slots[slots_of(IDS)]]
    with pytest.raises(RowsMovedError, match="has ended this move"):
        table.is_ready("m")
    with pytest.raises(RowsMovedError, match="has ended this move"):
        table.stage("m", {"ids": ids, "values": torch.ones(len(ids), 1)}, torch.empty(0, dtype=torch.int64))
    with pytest.raises(RowsMovedError, match="has ended this move"):
        table.take_applied("m", [])
    assert table.shard.size == 0


@pytest.mark.parametrize("is_restarted", [False, True])
def test_rows_that_arrive_are_removed_by_their_own_move_alone(is_restarted: bool) -> None:
    """An owner that has started again does not know whether the move was released meanwhile."""
    table = made("c")
    slots = table.routing.slots("a")
    table.begin_arrival("m", slots, "a", 1)
    ids = IDS[slots[slots_of(IDS)]]
    table.stage("m", {"ids": ids, "values": torch.ones(len(ids), 1)}, torch.empty(0, dtype=torch.int64))
    if is_restarted:
        table = restarted(table)
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
