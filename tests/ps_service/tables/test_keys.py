"""Tests of the keys of rows: a gradient never reaches the row of another id."""

from __future__ import annotations

import random

import pytest
import torch

from ps_service.tables import compiled
from ps_service.tables.generations import Generations
from ps_service.tables.kernels import Grouped
from ps_service.tables.row_gradients import key_space
from ps_service.tables.seen import first
from ps_service.tables.shard import TableShard
from ps_wire.tables.lifecycle import AfterSightings, Eviction
from ps_wire.tables.options import SGD, Adagrad, Constant
from ps_wire.tables.sums import grouped


def ids(*given: int) -> torch.Tensor:
    return torch.tensor(given, dtype=torch.int64)


def update(shard: TableShard, keys: torch.Tensor, gradients: torch.Tensor) -> None:
    shard.update(Grouped.of_different(keys, gradients))


@pytest.fixture(params=["torch", *(["numba"] if compiled.available() else [])])
def implementation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_keys_end_with_their_rows() -> None:
    rows = Generations(10, 4)
    numbers = ids(3, 10, 0)
    first = rows.keys(numbers)
    assert first.tolist() == numbers.tolist() and rows.current(first) is None
    rows.free(ids(3))
    second = rows.keys(numbers)
    assert rows.numbers(second).tolist() == numbers.tolist()
    current = rows.current(first)
    assert current is not None and current.tolist() == [False, True, True] and rows.current(second) is None
    rows.clear()
    current = rows.current(torch.cat([first, second]))
    assert current is not None and not current.any()
    assert rows.current(rows.keys(numbers)) is None
    rows.free(ids())


@pytest.mark.parametrize("dim", [1, 3, 64, 65_536])
def test_keys_are_less_than_the_rows_that_a_gradient_has(dim: int) -> None:
    rows = Generations(1 << 20, dim)
    for _ in range(100):
        rows.clear()
    rows._base = 1 << 60  # as after very many
    assert 0 <= int(rows.keys(ids(1 << 20))) < key_space(dim)
    assert key_space(dim) * dim * 4 < 1 << 63
    assert torch.empty(1).expand(key_space(dim), dim).numel() == key_space(dim) * dim


def test_a_late_gradient_does_not_reach_the_row_of_another_id(implementation: str) -> None:
    shard = TableShard(2, SGD(1.0), Constant(1.0), implementation=implementation)
    keys, _ = shard.rows_of(ids(1, 2))
    shard.remove(ids(1))
    again, _ = shard.rows_of(ids(3))
    assert (again & 0xFF).tolist() == [0], "it has the number that the row of 1 had"
    update(shard, keys, torch.ones(2, 2))
    assert shard.look_up(ids(1, 2, 3), add=False).tolist() == [[1, 1], [0, 0], [1, 1]]
    assert (shard.statistics.late, shard.statistics.updated) == (1, 1)
    shard.rows_of(ids(1))
    update(shard, keys[:1], torch.ones(1, 2))
    assert shard.look_up(ids(1), add=False).tolist() == [[1, 1]], "a row that began anew is another row"
    shard.clear()
    shard.rows_of(ids(1, 2, 3))
    update(shard, torch.cat([keys, again]), torch.ones(3, 2))
    assert shard.look_up(ids(1, 2, 3), add=False).tolist() == [[1, 1]] * 3
    assert shard.updates == 4


def test_the_row_that_ids_without_one_read_is_not_trained(implementation: str) -> None:
    shard = TableShard(
        2, SGD(1.0), Constant(1.0), admission=AfterSightings(2, default=5.0), implementation=implementation
    )
    keys, rows = shard.rows_of(ids(1, 2))
    assert rows.tolist() == [[5, 5], [5, 5]]
    own = shard.own(keys)
    assert own is not None and not own.any()
    update(shard, grouped(keys).targets, torch.ones(1, 2))
    keys, pooled, kept = shard.pooled_rows_of(ids(1, 3), ids(0), torch.tensor([1.0, 2.0]), True)
    assert (pooled.tolist(), kept.tolist()) == ([[11.0, 11.0]], [[1, 1], [5, 5]])  # type: ignore[union-attr]
    update(shard, keys, torch.ones(2, 2))
    assert shard.look_up(ids(1, 2, 3), add=False).tolist() == [[0, 0], [5, 5], [5, 5]]
    shard.clear()
    keys, _ = shard.rows_of(ids(7))
    assert shard.own(keys) is not None, "also after all keys have ended"


def test_what_makes_room_is_never_looked_up_in_the_same_request(implementation: str) -> None:
    eviction = Eviction(at_capacity="least_recent", share=0.0, spare=0.0)
    clock = iter(range(1, 1000))
    shard = TableShard(
        *(1, SGD(1.0), Constant(0.0)),
        admission=AfterSightings(2),
        eviction=eviction,
        max_rows=3,
        implementation=implementation,
        clock=lambda: next(clock),
    )
    for each in (1, 2, 3):
        for _ in range(2):
            shard.rows_of(ids(each))
    shard.load([{"ids": ids(1, 2, 3), "values": torch.tensor([[1.0], [2.0], [3.0]])}], clear=False)
    shard.rows_of(ids(9))
    # 9 gets its row now, and 1 would be the first to go.
    _, rows = shard.rows_of(ids(1, 9))
    assert rows.tolist() == [[1], [0]] and shard.size == 3


@pytest.mark.parametrize("seed", range(4))
def test_gradients_by_key_in_any_order(seed: int, implementation: str) -> None:
    """Random look-ups, late updates and removals, against a dictionary with a row for each life of an id."""
    draw = random.Random(seed)
    shard = TableShard(1, Adagrad(1.0), Constant(0.5), implementation=implementation)
    alive: dict[int, list[float]] = {}
    held: list[tuple[torch.Tensor, list[list[float]]]] = []
    for _ in range(120):
        some = draw.sample(range(12), draw.randint(1, 5))
        match draw.choice(["look", "look", "step", "remove", "clear"]):
            case "look":
                keys, rows = shard.rows_of(ids(*some))
                lives = [alive.setdefault(each, [0.5, 0.0]) for each in some]
                torch.testing.assert_close(rows[:, 0], torch.tensor([value for value, _ in lives]))
                held.append((keys, lives))
            case "step" if held:
                keys, lives = held.pop(draw.randrange(len(held)))
                update(shard, keys, torch.full((len(keys), 1), 2.0))
                for life in lives:
                    life[1] += 4
                    life[0] -= 2 / life[1] ** 0.5
            case "remove":
                assert shard.remove(ids(*some)) == len([alive.pop(each) for each in some if each in alive])
            case "clear" if draw.random() < 0.3:
                shard.clear()
                alive.clear()
    expected = torch.tensor([alive[each][0] for each in alive])
    if alive:
        torch.testing.assert_close(shard.look_up(ids(*alive), add=False)[:, 0], expected)
    assert shard.size == len(alive)


@pytest.mark.parametrize("by", ["least_recent", "least_frequent", "smallest_norm"])
def test_a_table_that_is_nearly_full_makes_room_in_turns(by: str, implementation: str) -> None:
    clock = iter(range(1, 10_000))
    eviction = Eviction(at_capacity=by, share=0.2, spare=0.0)  # type: ignore[arg-type]
    shard = TableShard(
        *(1, SGD(1.0), Constant(0.0)),
        eviction=eviction,
        max_rows=100,
        implementation=implementation,
        clock=lambda: next(clock),
    )
    for each in range(90):
        shard.rows_of(ids(each))
    assert (shard.excess, list(shard.turns(expire=True, turn_rows=7))) == (0, [None] * 13)
    for each in range(90, 95):
        shard.rows_of(ids(each))
    shard.load([{"ids": torch.arange(95), "values": torch.arange(95)[:, None] / 10 + 1.0}], clear=False)
    expected = shard.evict(15, dry_run=True).tolist()
    turns = shard.turns(expire=False, turn_rows=7)
    for _ in range(14):
        next(turns)
    assert (shard.excess, shard.size) == (15, 95)
    next(turns)
    shard.rows_of(ids(*expected[9:11]))  # they are looked up before it is their turn
    shard.remove(ids(expected[12]))
    shard.rows_of(ids(1_000))
    assert len(list(turns)) == 2
    stay = {*range(95), 1_000} - set(expected) | set(expected[9:11])
    assert set(shard._map.items()[0].tolist()) == stay and shard.excess == 0
    assert (shard.statistics.evicted, shard.statistics.removed) == (12, 1)


def test_the_lowest_scores_come_first() -> None:
    scores = torch.tensor([3, 1, 2, 1, 3, 1, 0])
    for count in range(7):
        assert first(scores, count).tolist() == scores.argsort(stable=True).tolist()[:count]
    assert sorted(first(scores, 9).tolist()) == list(range(7))
