"""Tests of how ids get a row, and how rows go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ps_service.tables.shard import TableShard
from ps_service.tables.storage import BlockRows
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.tables.lifecycle import AfterSightings, Eviction, WithProbability
from ps_wire.tables.options import SGD, Adagrad, Constant, Normal
from tests.ps_service.tables.conftest import MakeShard, train


class Clock:
    """A time that tests set."""

    now = 1e9

    def __call__(self) -> float:
        return self.now


def _ids(*ids: int) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64)


def _all_ids(shard: TableShard) -> list[int]:
    return sorted(each for block in shard.blocks() for each in block["ids"].tolist())


def test_an_id_gets_its_row_with_the_sighting_that_was_asked_for(make_shard: MakeShard) -> None:
    shard = make_shard(2, SGD(0.5), Constant(1.0), admission=AfterSightings(3, default=-2.0))
    assert shard.look_up(_ids(7, 7, 7)).tolist() == [[-2.0, -2.0]] * 3
    assert shard.look_up(_ids(7)).tolist() == [[-2.0, -2.0]]
    assert shard.look_up(_ids(7), add=False).tolist() == [[-2.0, -2.0]]
    assert shard.size == 0
    assert shard.look_up(_ids(7, 8)).tolist() == [[1.0, 1.0], [-2.0, -2.0]]
    assert shard.pooled_rows_of(_ids(7, 8), _ids(0), None, False)[1].tolist() == [[-1.0, -1.0]]
    counted = shard.statistics
    assert (shard.size, counted.added, counted.refused, counted.missing) == (1, 1, 3 + 1 + 1 + 1, 1)


def test_gradients_of_ids_without_a_row_are_dropped(make_shard: MakeShard) -> None:
    shard = make_shard(2, SGD(0.5), Constant(1.0), admission=AfterSightings(4))
    for _ in range(4):
        shard.look_up(_ids(1, 3))
    train(shard, _ids(1, 2, 3, 1), torch.ones(4, 2))
    train(shard, _ids(2, 2, 3), torch.ones(2, 2), _ids(0, 1), torch.tensor([5.0, 6.0, 2.0]))
    assert shard.look_up(_ids(1, 2, 3, 4), add=False).tolist() == [[0, 0], [0, 0], [-0.5, -0.5], [0, 0]]
    train(shard, _ids(2), torch.ones(1, 2))
    assert (shard.size, shard.statistics.gradients, shard.statistics.updated) == (2, 8, 3)


@pytest.mark.parametrize("sightings", [3, 255])
def test_an_id_gets_its_row_again_however_often_it_was_seen(sightings: int, make_shard: MakeShard) -> None:
    shard = make_shard(1, SGD(), Constant(1.0), admission=AfterSightings(sightings, default=-2.0))
    for _ in range(sightings - 1):
        assert shard.look_up(_ids(7)).tolist() == [[-2.0]]
    for _ in range(260):  # more than a counter can hold
        assert shard.look_up(_ids(7)).tolist() == [[1.0]]
        shard.remove(_ids(7))


def test_the_filter_admits_few_ids_too_early() -> None:
    shard = TableShard(1, SGD(), admission=AfterSightings(3, counters=1 << 18))
    ids = torch.arange(10_000)
    shard.look_up(ids)
    shard.look_up(ids)
    assert shard.size < 50
    shard.look_up(ids)
    assert shard.size == 10_000


def test_the_filter_forgets(make_shard: MakeShard) -> None:
    shard = make_shard(1, SGD(), admission=AfterSightings(2, counters=1 << 13))
    for begin in range(0, 200_000, 500):
        shard.look_up(torch.arange(begin, begin + 500))
    assert shard.size < 200_000 * 0.1  # with counts that only grow, nearly all


def test_ids_get_rows_with_the_probability_that_was_asked_for(make_shard: MakeShard) -> None:
    shard = make_shard(1, SGD(), admission=WithProbability(0.25))
    ids = torch.arange(20_000)
    shard.look_up(ids)
    assert shard.size == pytest.approx(5_000, rel=0.06)
    shard.look_up(ids)
    assert shard.size == pytest.approx(8_750, rel=0.06)


def test_the_row_of_the_others_is_there_without_reserved_memory() -> None:
    rows = BlockRows(2, torch.float32)
    rows.write(_ids(1 << 35, 3), torch.ones(2, 2))
    assert rows.read(_ids(3, 4, 1 << 35)).tolist() == [[1, 1], [0, 0], [1, 1]]


def test_rows_expire(make_shard: MakeShard) -> None:
    clock = Clock()
    shard = make_shard(1, Adagrad(0.1), Normal(), eviction=Eviction(ttl=100, spare=10), clock=clock)
    first = shard.look_up(_ids(1, 2, 3))
    train(shard, _ids(1, 2, 3), torch.ones(3, 1))
    clock.now += 99
    shard.look_up(_ids(2))
    shard.look_up(_ids(3), add=False)  # is no training
    assert shard.expire(0, 3)[0].tolist() == []
    clock.now += 1
    assert shard.expire(0, 3, dry_run=True)[0].tolist() == [1, 3]
    assert shard.size == 3
    assert [each.tolist() for each in (shard.expire(0, 1)[0], shard.expire(1, 2)[0])] == [[1], [3]]
    assert (_all_ids(shard), shard.statistics.expired) == ([2], 2)
    assert torch.equal(shard.look_up(_ids(3, 1)), first[[2, 0]])  # they begin anew
    clock.now += 100
    assert sorted(shard.expire(0, 3)[0].tolist()) == [1, 2, 3]


@pytest.mark.parametrize("by", ["least_recent", "least_frequent", "smallest_norm"])
def test_rows_make_room_in_the_order_that_was_asked_for(by: str, make_shard: MakeShard) -> None:
    clock = Clock()
    eviction = Eviction(at_capacity=by, share=0.0, spare=5)  # type: ignore[arg-type]
    shard = make_shard(1, SGD(1.0), Constant(0.0), max_rows=4, eviction=eviction, clock=clock)
    for identity, sightings, value in ((1, 3, 1.0), (2, 4, -2.0), (3, 2, 3.0), (4, 5, 0.5)):
        for _ in range(sightings):
            clock.now += 1
            shard.look_up(_ids(identity))
        shard.load([{"ids": _ids(identity), "values": torch.tensor([[value]])}], clear=False)
    clock.now += 5
    first, second = {"least_recent": (1, 2), "least_frequent": (3, 1), "smallest_norm": (4, 1)}[by]
    assert shard.evict(2, dry_run=True).tolist() == [first, second]
    shard.look_up(_ids(9, first))  # makes room for one, and needs the first itself
    assert _all_ids(shard) == sorted({1, 2, 3, 4, 9} - {second})
    assert shard.statistics.evicted == 1


def test_a_share_of_the_rows_makes_room_at_once(make_shard: MakeShard) -> None:
    clock = Clock()
    eviction = Eviction(at_capacity="least_recent", share=0.25)
    shard = make_shard(1, SGD(), max_rows=100, eviction=eviction, clock=clock)
    for begin in range(0, 100, 10):
        shard.look_up(torch.arange(begin, begin + 10))
        clock.now += 1
    clock.now += 60
    shard.look_up(_ids(1_000))
    assert _all_ids(shard) == [*range(25, 100), 1_000]


def test_rows_that_open_passes_may_have_gradients_for_stay(make_shard: MakeShard) -> None:
    clock = Clock()
    shard = make_shard(1, SGD(), max_rows=3, eviction=Eviction(at_capacity="least_recent"), clock=clock)
    shard.look_up(_ids(1, 2, 3))
    clock.now += 59
    before = _all_ids(shard)
    with pytest.raises(TooLargeError):
        shard.look_up(_ids(4))
    assert _all_ids(shard) == before
    clock.now += 2
    shard.look_up(_ids(4))
    assert (shard.size, 4 in _all_ids(shard)) == (3, True)
    clock.now += 61
    with pytest.raises(TooLargeError):
        shard.look_up(_ids(5, 6, 7, 8))
    assert shard.size == 3


def test_statistics_say_how_a_table_is_used(make_shard: MakeShard) -> None:
    shard = make_shard(1, SGD(), Normal())
    shard.look_up(_ids(1, 2, 2))
    shard.look_up(_ids(1, 5), add=False)
    train(shard, _ids(1, 1, 1, 2), torch.ones(4, 1))
    shard.remove(_ids(1))
    counted = shard.statistics
    assert (counted.looked_up, counted.added, counted.missing, counted.removed) == (9, 2, 1, 1)
    assert (counted.hits, counted.gradients, counted.updated) == (6, 4, 2)


def test_values_are_put_in_place_of_others(make_shard: MakeShard) -> None:
    shard = make_shard(2, Adagrad(0.1), Normal())
    shard.look_up(_ids(1))
    train(shard, _ids(1), torch.ones(1, 2))
    shard.load([{"ids": _ids(1, 9), "values": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}], clear=False)
    (block,) = shard.blocks()
    assert (block["ids"].tolist(), block["values"].tolist()) == ([1, 9], [[1, 2], [3, 4]])
    assert block["state.sum"].tolist() == [[1, 1], [0, 0]]
    for ids, values in (
        (_ids(1, 1), torch.zeros(2, 2)),
        (_ids(1), torch.zeros(1, 3)),
        (_ids(1), torch.zeros(1, 2).long()),
    ):
        with pytest.raises(InvalidArgumentError):
            shard.load([{"ids": ids, "values": values}], clear=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AfterSightings(1),
        lambda: AfterSightings(256),
        lambda: AfterSightings(2, counters=1),
        lambda: AfterSightings(2, default=float("nan")),
        lambda: WithProbability(0),
        lambda: WithProbability(1.5),
        lambda: Eviction(ttl=-1),
        lambda: Eviction(at_capacity="oldest"),  # type: ignore[arg-type]
        lambda: Eviction(share=2),
        lambda: Eviction(spare=float("inf")),
    ],
)
def test_options_that_do_not_fit_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError):
        make()
