"""Who follows the rows of a shard by its feed has all of them, bit for bit, whatever happens to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ps_service.tables import feed
from ps_service.tables.row_reading import rows_at, values_with, without_rows
from ps_service.tables.shard import TableShard
from ps_wire.codec.trees import mapped
from ps_wire.tables.options import SGD, LazyAdam
from ps_wire.tables.versions import RowsVersion
from tests.ps_service.tables.test_row_changes import ADMISSIONS, EVICTIONS, OPERATIONS, Clock, Run

ALL = st.lists(
    st.one_of(
        OPERATIONS.filter(bool),
        st.tuples(st.sampled_from(["poll", "poll", "keep", "drained", "killed", "killed with a log", "epoch"])),
    ),
    max_size=8,
)


def rows_of(shard: TableShard) -> dict[int, bytes]:
    return {
        int(id): values.numpy().tobytes()
        for block in shard.blocks()
        for id, values in zip(block["ids"], block["values"], strict=True)
    }


class Follower:
    """Knows rows by the feed of a shard."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.version: RowsVersion | None = None
        self.resets = 0

    def poll(self, shard: TableShard, most: int = 3) -> None:
        """Takes what has changed, at most so many rows at a time."""
        since, begin = self.version, 0
        self.version = shard.watchers.version
        while begin is not None:
            found = shard.feed.since(since, begin, most)
            if found is None:
                self.rows, self.resets = rows_of(shard), self.resets + 1
                return
            block, gone = rows_at(shard, found.numbers), without_rows(shard, found.removed)
            ids = block["ids"].tolist()
            assert len(set(ids)) == len(ids) <= most and not set(gone.tolist()) & set(rows_of(shard))
            for id in gone.tolist():
                self.rows.pop(id, None)
            self.rows |= {id: values.numpy().tobytes() for id, values in zip(ids, block["values"], strict=True)}
            begin = found.begin


class Owner:
    """The shard of an owner, and what it has kept."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.keep()

    def keep(self) -> None:
        shard = self.run.shard
        self._state = mapped(shard.feed.state() or {}, lambda each: each.clone())
        self._blocks, self._now = list(shard.blocks()), shard.now()
        self._gate, self._count = shard.admission_state(), len(self.run.changes.kept)

    def start(self, with_log: bool) -> None:
        again = self.run.new()
        again.load(self._blocks, now=self._now)
        if self._gate is not None:
            again.load_admission(self._gate)
        if self._state:
            again.feed.load(self._state)
        if not with_log:
            del self.run.changes.kept[self._count :]
        for change in self.run.changes.kept[self._count :]:
            again.redo(change)
        self.run.shard = again
        again.tell(self.run.changes)


@settings(max_examples=50)
@example([[("look", [1])], ("poll",), [("train", [1])], ("drained",), ("poll",)], None, None, SGD(0.5), 4)
@example([[("look", [1])], ("poll",), ("keep",), [("train", [1])], ("poll",), ("killed",)], None, None, SGD(0.5), 4)
@example([[("look", [1])], ("poll",), ("keep",), [("train", [1])], ("killed with a log",)], None, None, SGD(0.5), 4)
@given(
    *(ALL, st.sampled_from(EVICTIONS), st.sampled_from(ADMISSIONS), st.sampled_from([SGD(0.5), LazyAdam(0.1)])),
    st.sampled_from([4, 1 << 22]),
)
def test_a_follower_has_the_rows_at_each_version(
    operations: list[Any], eviction: Any, admission: Any, optimizer: Any, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(feed, "MOST_IDS", most)
        patched.setattr(feed, "SCAN_ROWS", 2)
        patched.setattr(feed, "ENTRY_IDS", 0)
        run = Run(Clock(), optimizer=optimizer, eviction=eviction, admission=admission)
        owner, often, seldom = Owner(run), Follower(), Follower()
        for operation in operations:
            match operation:
                case list():
                    run.run(operation)
                case ("keep",):
                    owner.keep()
                case ("drained",):
                    owner.keep()
                    owner.start(with_log=False)
                case ("killed",):
                    owner.start(with_log=False)
                case ("killed with a log",):
                    owner.start(with_log=True)
                case ("epoch",):
                    run.shard.feed.begin_epoch()
                case ("poll",):
                    seldom.poll(run.shard)
            often.poll(run.shard, 1)
            assert often.rows == rows_of(run.shard)
        seldom.poll(run.shard)
        assert seldom.rows == rows_of(run.shard)


class World:
    """A shard with a feed, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shard = TableShard(1, SGD(0.5))
        self.feed, self.watchers = self.shard.feed, self.shard.watchers
        self.feed._clock = lambda: self.now  # type: ignore[misc]

    def begin(self) -> RowsVersion:
        assert self.feed.since(None, 0, 100) is None
        return self.watchers.version

    def change(self, *ids: int) -> None:
        self.shard.put({"ids": torch.tensor(ids), "values": torch.randn(len(ids), 1)})

    def since(self, version: RowsVersion, most: int = 1 << 20) -> list[int] | None:
        found = self.feed.since(version, 0, most)
        return None if found is None else rows_at(self.shard, found.numbers)["ids"].tolist()


def test_a_feed_names_each_row_once() -> None:
    world = World()
    begun = world.begin()
    world.change(3, 1)
    between = world.watchers.version
    assert world.since(begun) == [3, 1]
    world.change(2, 3)
    assert (world.since(begun), world.since(between), world.since(world.watchers.version)) == ([3, 1, 2], [3, 2], [])
    assert world.since(begun, most=2) == [3, 1]


def test_versions_that_nobody_had_are_not_known() -> None:
    world, other = World(), World()
    begun = world.begin()
    world.change(1)
    epoch, number = world.watchers.version
    assert world.since(RowsVersion(epoch, number + 1)) is None
    assert world.since(RowsVersion(epoch, begun.number - 1)) is None
    assert world.since(other.begin()) is None
    assert world.since(begun) == [1]
    found = world.feed.since(begun, 1 << 40, 10)
    assert found is not None and not len(found.numbers) and found.begin is None


def test_a_feed_that_nobody_asks_notes_nothing_more() -> None:
    world = World()
    begun = world.begin()
    world.now = feed.ABANDONED_SECONDS + 1
    world.change(1)
    assert not world.watchers._all and world.feed.state() is None
    assert world.since(begun) is None, "it begins again"
    begun = world.watchers.version
    world.change(7)
    assert world.since(begun) == [7]


def test_what_a_feed_keeps_of_rows_that_have_gone_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_IDS", 1000)
    world = World()
    begun = world.begin()
    for low in range(0, 10_000, 100):
        world.change(*range(low, low + 100))
        world.shard.remove(torch.arange(low, low + 100))
        assert sum(len(gone) for _, gone in world.feed._removed) <= 1000
    assert world.since(begun) is None
    recent = world.watchers.version
    # Rows that are there need no room, however many change.
    for _ in range(3):
        world.change(*range(5000))
    assert world.since(recent) == list(range(5000))


def test_while_rows_are_read_in_pieces_as_many_removals_are_kept_as_there_were_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "MOST_IDS", 1000)
    world = World()
    world.change(*range(10_000))
    begun = world.begin()
    for low in range(0, 9000, 500):
        world.shard.remove(torch.arange(low, low + 500))
        world.now += 0.9 * feed.READING_SECONDS
        world.feed.since(None, 0, 1)
    found = world.feed.since(begun, 0, 100)
    assert found is not None and len(found.removed) == 9000
    state = world.feed.state()
    assert state is not None and sum(len(gone) for _, gone in state["removed"]) <= 1000
    again = World()
    again.shard.load(world.shard.blocks())
    again.feed.load(state)
    assert again.since(begun) is None and again.since(world.watchers.version) == []
    world.now += 1.1 * feed.READING_SECONDS
    world.shard.remove(torch.tensor([9999]))
    assert sum(len(gone) for _, gone in world.feed._removed) <= 1000 and world.since(begun) is None


def test_removals_of_one_row_each_are_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_IDS", 1000)
    world = World()
    world.begin()
    for number in range(200):
        world.change(number)
        world.shard.remove(torch.tensor([number]))
        world.shard.remove(torch.empty(0, dtype=torch.int64))
    assert len(world.feed._removed) <= 1000 // feed.ENTRY_IDS


def test_a_checkpoint_has_the_latest_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_IDS", 3)
    world = World()
    begun = world.begin()
    world.change(*range(10))
    between = world.watchers.version
    world.change(3, 4)
    state = world.feed.state()
    assert state is not None and sorted(state["ids"].tolist()) == [3, 4]
    again = World()
    again.shard.load(world.shard.blocks())
    again.feed.load(state)
    assert again.since(begun) is None and again.since(between) == [3, 4]


def test_reading_counts_nothing() -> None:
    shard = TableShard(2, SGD(0.5), eviction=EVICTIONS[1])
    shard.look_up(torch.tensor([1, 2]))
    before, version = shard.statistics, shard.watchers.version
    ages = [block["age"].tolist() for block in shard.blocks(now=shard.now())]
    values, there = values_with(shard, torch.tensor([2, 7, 1]))
    assert there.tolist() == [True, False, True] and shard.size == 2
    assert torch.equal(values, shard.look_up(torch.tensor([2, 1]), add=False))
    assert (shard.statistics.added, shard.statistics.missing) == (before.added, before.missing)
    assert shard.watchers.version == version and len(ages) == 1
