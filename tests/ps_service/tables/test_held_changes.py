"""What is read in pieces while rows change is what had changed at one moment."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_service.tables.budget import TableBudget
from ps_service.tables.held_changes import MOST, SECONDS, ChangesReaders
from ps_service.tables.shard import TableShard
from ps_wire.errors import TooLargeError
from ps_wire.tables.options import SGD, LazyAdam
from tests.ps_service.tables.test_pinned_rows import pairs, rows_of
from tests.ps_service.tables.test_row_changes import ADMISSIONS, EVICTIONS, OPERATIONS, Clock, Run


@given(
    st.lists(st.tuples(OPERATIONS, OPERATIONS), min_size=1, max_size=5),
    st.sampled_from(EVICTIONS),
    st.sampled_from(ADMISSIONS),
    st.sampled_from([SGD(0.5, momentum=0.9), LazyAdam(0.1)]),
    st.sampled_from([1, 3, 100]),
)
@settings(deadline=None, max_examples=25)
def test_pieces_are_as_of_one_moment(runs: list[Any], evict: Any, admit: Any, optimizer: Any, count: int) -> None:
    run = Run(Clock(), optimizer=optimizer, eviction=evict, admission=admit)
    readers = ChangesReaders()
    run.shard.feed.since(None, 0, 1)
    rows, version = rows_of(run.shard), run.shard.watchers.version
    happened = list[Any]()
    for before, meanwhile in runs:
        run.run(before)
        happened += before
        expected, then = rows_of(run.shard), run.shard.watchers.version
        number = readers.begin(run.shard, version, 0)
        if number is None:
            assert any(name == "clear" for name, *_ in happened), "the feed knows what has changed"
            rows, version, happened = expected, then, []
            continue
        held = readers.find(number)
        assert held is not None and held.version == then
        while held.next is not None:
            block, gone = held.piece(count)
            for id in gone.tolist():
                rows.pop(id, None)
            rows.update(pairs(block))
            run.run(meanwhile)
        readers.end(number)
        assert rows == expected
        version, happened = then, list(meanwhile)


def shard(budget: TableBudget | None = None) -> TableShard:
    made = TableShard(4, SGD(0.1), seed=1)
    if budget is not None:
        made.count_in(budget, "t")
    made.feed.since(None, 0, 1)
    made.look_up(torch.arange(2000))
    return made


def change(made: TableShard, rows: int = 1000) -> None:
    made.put({"ids": torch.arange(rows), "values": torch.randn(rows, 4)})


def test_what_nobody_asks_for_any_more_is_given_up() -> None:
    made, clock = shard(), Clock()
    readers, since = ChangesReaders(clock), made.watchers.version
    change(made)
    number = readers.begin(made, since, 0)
    assert number is not None and readers.find(number) is not None
    clock.now += SECONDS
    readers.sweep()
    assert readers.find(number) is not None, "it was asked for within that time"
    clock.now += SECONDS + 1
    readers.sweep()
    assert readers.find(number) is None
    change(made)
    assert not made.watchers._keepers


def test_rows_that_have_not_changed_or_were_read_are_not_copied() -> None:
    made = shard()
    readers, since = ChangesReaders(), made.watchers.version
    change(made, 100)
    number = readers.begin(made, since, 0)
    held = readers.find(number or 0)
    assert held is not None
    change(made, 2000)
    assert held._copied.rows == 100
    ids, _ = held.piece(60)
    assert len(ids["ids"]) == 60 and held.next == 60
    again = readers.find(readers.begin(made, since, 0) or 0)
    assert again is not None
    again.piece(1900)
    change(made, 2000)
    assert again._copied.rows == 100


def test_rows_that_want_the_room_have_it() -> None:
    budget = TableBudget("ps0", 1 << 40)
    made, other = shard(budget), shard(budget)
    readers, since = ChangesReaders(), made.watchers.version
    change(made)
    for room in (0, 1 << 20):
        tight = TableBudget("ps0", budget.nbytes + room)
        for each in (made, other):
            each.count_in(tight, "t")
        number = readers.begin(made, since, 0)
        assert (number is None) == (room == 0)
    change(made)
    assert number is not None and tight.nbytes > budget.nbytes
    other.look_up(torch.arange(2000, 2000 + tight.room(other.row_bytes) // 4))
    assert readers.find(number) is not None
    with pytest.raises(TooLargeError):
        other.look_up(torch.arange(10_000, 10_000 + (1 << 16)))
    assert readers.find(number) is None and made.watchers._keepers[0]() is None


def test_few_read_at_the_same_time() -> None:
    made = shard()
    readers, since = ChangesReaders(), made.watchers.version
    change(made)
    numbers = [readers.begin(made, since, 0) for _ in range(MOST + 1)]
    assert numbers[-1] is None and len(set(numbers)) == MOST + 1
    assert numbers[0] is not None
    readers.end(numbers[0])
    assert readers.begin(made, since, 0) is not None
