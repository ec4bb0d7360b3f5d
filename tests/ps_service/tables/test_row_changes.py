"""Changes of rows, made again on another shard, give the same rows bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ps_service.tables import compiled
from ps_service.tables.row_changes import RowChange
from ps_service.tables.shard import TableShard
from ps_wire.codec.trees import mapped
from ps_wire.errors import StorageError, TooLargeError
from ps_wire.tables.lifecycle import AfterSightings, Eviction, WithProbability
from ps_wire.tables.options import SGD, LazyAdam, RowWiseAdagrad

IMPLEMENTATION: Any = "numba" if compiled.available() else "torch"
MOST = 12
EVICTIONS = [
    None,
    Eviction(ttl=10, spare=0.0),
    Eviction(ttl=10, at_capacity="least_frequent", share=0.2, spare=0.0),
    Eviction(at_capacity="smallest_norm", share=0.0, spare=1.0),
]
ADMISSIONS = [None, AfterSightings(2, counters=1 << 10), WithProbability(0.5)]
OPTIMIZERS = [SGD(0.5, momentum=0.9), RowWiseAdagrad(0.1), LazyAdam(0.1)]

IDS = st.lists(st.one_of(st.integers(0, 20), st.sampled_from([-1, 1 << 40])), min_size=1, max_size=6)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["look", "train", "train", "remove", "put", "put_all", "late"]), IDS),
        st.tuples(st.just("evict"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(1, 11)),
        st.tuples(st.sampled_from(["expire", "turns", "clear", "many", "rate"])),
    ),
    max_size=20,
)


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


class Changes:
    """Keeps changes."""

    def __init__(self) -> None:
        self.kept: list[RowChange] = []
        self.is_full = False

    def check(self, nbytes: int) -> None:
        if self.is_full:
            raise StorageError("No space left on device")

    def note(self, change: RowChange) -> None:
        assert not self.is_full
        self.kept.append(change._replace(values=mapped(dict(change.values), torch.clone)))

    @contextmanager
    def telling(self) -> Iterator[None]:
        yield


def gradients(shard: TableShard, keys: torch.Tensor, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    found = shard.gradient(keys, torch.randn(len(keys), shard.dim, generator=generator), None, None, len(keys)).pending
    assert found is not None
    return found


class Run:
    """A shard that tells its changes, and what it was after so many of them."""

    def __init__(self, clock: Clock, **options: Any) -> None:
        self.clock, self.changes, self.options = clock, Changes(), options
        self.shard = self.new()
        self.shard.tell(self.changes)
        self.states = {0: state_of(self.shard)}
        self._late: torch.Tensor | None = None

    def new(self) -> TableShard:
        return TableShard(2, seed=5, implementation=IMPLEMENTATION, clock=self.clock, max_rows=MOST, **self.options)

    def run(self, operations: Sequence[Any]) -> None:
        for number, (name, *arguments) in enumerate(operations):
            with suppress(TooLargeError):
                self._do(name, number, *(torch.tensor(a) if isinstance(a, list) else a for a in arguments))
            self.states[len(self.changes.kept)] = state_of(self.shard)

    def _step(self, keys: torch.Tensor, seed: int) -> None:
        self.shard.update(gradients(self.shard, keys, seed))
        self.changes.note(self.shard.images(keys.unique()))

    def _do(self, name: str, number: int, argument: Any = None) -> None:
        shard = self.shard
        match name:
            case "look":
                shard.look_up(argument)
            case "train":
                self._step(shard.rows_of(argument)[0], number)
            case "late":
                if self._late is not None:
                    self._step(self._late, number)
                self._late = shard.rows_of(argument)[0]
            case "many":
                shard.look_up(torch.arange(100, 100 + MOST - 2))
            case "remove":
                shard.remove(argument)
            case "put" | "put_all":
                ids = argument.unique()
                block = {"ids": ids, "values": torch.randn(len(ids), 2).to(shard.dtype)}
                if name == "put_all":
                    states = {f"state.{each}": torch.rand(len(ids), n) for each, n in shard._rows.widths.items()}
                    block |= states | {"age": ids.abs() % 7_000_000, "sightings": ids.abs() % 4}
                shard.put(block)
            case "evict":
                shard.evict(argument)
            case "expire":
                shard.expire(0, 100)
            case "turns":
                for _ in shard.turns(expire=True, turn_rows=3):
                    pass
            case "clear":
                shard.clear()
            case "wait":
                self.clock.now += argument
            case "rate":
                shard.set_options(lr=0.25)


def state_of(shard: TableShard) -> dict[str, Any]:
    """All that a shard has, as it was at the last change: rows by number, and what it keeps of them."""
    population = shard.population
    ids, numbers = shard._map.items()
    state: dict[str, Any] = {"ids": ids, "numbers": numbers, "values": shard._rows.values.read(numbers)}
    state |= {name: each.read(numbers) for name, each in shard._rows.states.items()}
    freed = torch.from_numpy(shard._map.free[: int(shard._map.counts[1])].copy())
    state["next"] = torch.cat(
        [freed.flip(0), torch.arange(shard._map.rows, shard.max_rows)]
    )  # the numbers of the next rows
    if population.seen is not None:
        state |= population.seen.read(numbers)
    if population.gate is not None:
        state["gate"] = mapped(population.gate.state(), torch.clone)
    return state


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def by_id(state: dict[str, Any]) -> dict[str, Any]:
    """A state without the numbers of rows, in the order of ids."""
    order = state["ids"].argsort()
    rows = {n: each[order] for n, each in state.items() if n not in ("numbers", "next", "gate")}
    return rows | {"gate": state.get("gate")}


@settings(max_examples=60)
@example([("many",), ("look", [1]), ("look", [2]), ("train", [1, 2]), ("look", [3, 4])], EVICTIONS[2], None, SGD(0.5))
@example([("late", [1, 2]), ("remove", [1]), ("look", [1]), ("late", [2])], None, None, SGD(0.5))
@given(OPERATIONS, st.sampled_from(EVICTIONS), st.sampled_from(ADMISSIONS), st.sampled_from(OPTIMIZERS))
def test_changes_made_again_give_the_same_rows(
    operations: list[Any], eviction: Any, admission: Any, optimizer: Any
) -> None:
    run = Run(Clock(), optimizer=optimizer, eviction=eviction, admission=admission)
    run.run(operations)
    again = run.new()
    for count, change in enumerate(run.changes.kept, 1):
        again.redo(change)
        if count in run.states:
            assert same(state_of(again), run.states[count])
    # Also on rows of a later moment, as a checkpoint has them that is written meanwhile.
    later = run.new()
    later.load(run.shard.blocks(), now=run.shard.now())
    if (admitted := run.shard.admission_state()) is not None:
        later.load_admission(admitted)
    for change in run.changes.kept:
        if change.kind == "added" and later.size + len(change.values["ids"]) > MOST:
            break  # rows that come later may leave no room
        later.redo(change)
    else:
        assert same(by_id(state_of(later)), by_id(state_of(run.shard)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_time_of_rows_goes_on_where_it_was(dtype: torch.dtype) -> None:
    clock = Clock()
    run = Run(clock, optimizer=SGD(0.5), eviction=Eviction(ttl=10, spare=0.0), dtype=dtype)
    run.run([("look", [1, 2]), ("wait", 4), ("train", [2])])
    clock.now += 1000  # the owner is away
    again = run.new()
    for change in run.changes.kept:
        again.redo(change)
    ages = {int(n): int(age) for block in again.blocks() for n, age in zip(block["ids"], block["age"], strict=True)}
    assert ages == {1: 4_000_000, 2: 0}
    clock.now += 6
    assert again.expire(0, 9)[0].tolist() == [1]
    # The same through a checkpoint.
    blocks, now = list(again.blocks()), again.now()
    clock.now += 1000
    another = run.new()
    another.load(blocks, now=now)
    clock.now += 4
    assert another.expire(0, 9)[0].tolist() == [2]


@pytest.mark.parametrize("admission", ADMISSIONS)
def test_without_room_rows_that_are_there_are_read_and_nothing_changes(admission: Any) -> None:
    run = Run(Clock(), optimizer=SGD(0.5), eviction=EVICTIONS[2], admission=admission)
    run.run([("put", [1, 2, 3]), ("look", [5]), ("wait", 20)])
    before, count = state_of(run.shard), len(run.changes.kept)
    run.changes.is_full = True
    assert run.shard.look_up(torch.tensor([2, 1, 2])).shape == (3, 2)
    assert run.shard.look_up(torch.tensor([9]), add=False).shape == (1, 2)
    changing: list[Callable[[], object]] = [
        lambda: run.shard.look_up(torch.tensor([1, 9])),
        lambda: run.shard.remove(torch.tensor([1])),
        lambda: run.shard.put({"ids": torch.tensor([1]), "values": torch.ones(1, 2)}),
        lambda: run.shard.evict(1),
        lambda: run.shard.expire(0, 9),
        run.shard.clear,
    ]
    for change in changing:
        with pytest.raises(StorageError):
            change()
    assert same(state_of(run.shard), before) and len(run.changes.kept) == count
    run.changes.is_full = False
    assert run.shard.expire(0, 9)[0].tolist()[:3] == [1, 2, 3]


def test_a_filter_that_halves_its_counts_does_so_again() -> None:
    run = Run(Clock(), optimizer=SGD(0.5), admission=AfterSightings(3, counters=1 << 10))
    again = run.new()
    for begin in range(0, 2000, 50):
        run.shard.look_up(torch.arange(begin, begin + 50))
    for change in run.changes.kept:
        again.redo(change)
    assert any("counters" in change.values for change in run.changes.kept)
    assert same(state_of(again), state_of(run.shard))
