"""Who follows the rows of a shard by its feed has all of them, bit for bit, whatever happens to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ps_service.tables import feed
from ps_service.tables.feed import Feed
from ps_service.tables.row_reading import rows_with, values_with
from ps_service.tables.shard import TableShard
from ps_service.tables.watchers import Watchers
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

    def poll(self, shard: TableShard) -> int:
        """Takes what has changed; returns how many ids that were named."""
        ids = shard.feed.since(self.version)
        self.version = shard.watchers.version
        if ids is None:
            self.rows, self.resets = rows_of(shard), self.resets + 1
            return len(self.rows)
        block, gone = rows_with(shard, ids)
        assert len(ids.unique()) == len(ids) and not set(gone.tolist()) & set(block["ids"].tolist())
        for id in gone.tolist():
            self.rows.pop(id, None)
        self.rows |= {
            int(id): values.numpy().tobytes() for id, values in zip(block["ids"], block["values"], strict=True)
        }
        return len(ids)


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


@settings(max_examples=150)
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
        patched.setattr(feed, "MOST_SEGMENTS", 3)
        patched.setattr(feed, "_MOST_OPEN", 2)
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
            often.poll(run.shard)
            assert often.rows == rows_of(run.shard)
        seldom.poll(run.shard)
        assert seldom.rows == rows_of(run.shard)


class World:
    """A feed, with a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.watchers = Watchers()
        self.feed = Feed(self.watchers, lambda: self.now)

    def begin(self) -> RowsVersion:
        assert self.feed.since(None) is None
        return self.watchers.version

    def change(self, *ids: int) -> None:
        self.watchers.changed(torch.tensor(ids))

    def since(self, version: RowsVersion) -> list[int] | None:
        found = self.feed.since(version)
        return None if found is None else found.tolist()


def test_a_feed_names_each_id_once_and_in_order() -> None:
    world = World()
    begun = world.begin()
    world.change(3, 1)
    between = world.watchers.version
    assert world.since(begun) == [1, 3]
    world.change(2, 3)
    assert (world.since(begun), world.since(between), world.since(world.watchers.version)) == ([1, 2, 3], [2, 3], [])


def test_versions_that_nobody_had_are_not_known() -> None:
    world, other = World(), World()
    begun = world.begin()
    world.change(1)
    epoch, number = world.watchers.version
    assert world.since(RowsVersion(epoch, number + 1)) is None
    assert world.since(RowsVersion(epoch, begun.number - 1)) is None
    assert world.since(other.begin()) is None
    assert world.since(begun) == [1]


def test_a_feed_that_nobody_asks_notes_nothing_more() -> None:
    world = World()
    begun = world.begin()
    world.now = feed.ABANDONED_SECONDS + 1
    for number in range(feed._MOST_OPEN):
        world.change(number)
    assert not world.watchers._all and world.feed.state() is None
    assert world.since(begun) is None, "it begins again"
    begun = world.watchers.version
    world.change(7)
    assert world.since(begun) == [7]


def test_a_feed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_IDS", 1000)
    world = World()
    begun = world.begin()
    for begin in range(0, 100_000, 100):
        world.change(*range(begin, begin + 100))
        world.since(world.watchers.version)
    assert sum(len(each.ids) for each in world.feed._segments) <= 1000
    assert len(world.feed._segments) <= feed.MOST_SEGMENTS
    assert world.since(begun) is None


def test_ids_that_change_all_the_time_are_kept_once_for_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_IDS", 1000)
    world = World()
    begun = world.begin()
    for _ in range(1000):
        before = world.watchers.version
        world.change(*range(100))
        assert world.since(before) == list(range(100))
    assert world.since(begun) == list(range(100))


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
