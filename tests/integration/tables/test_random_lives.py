"""Random orders of look-ups, late steps, evictions and more by two trainers, against a plain dictionary of rows."""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import trainer_client as tc
from ps_service.server import Server
from tests.integration.tables.test_life_of_rows import Clock, shard_of

names = itertools.count()
FIRST, DEFAULT, RATE, TTL, DIM = 0.25, -8.0, 0.5, 10, 2
ADMISSIONS = [None, tc.tables.AfterSightings(2, counters=1 << 14, default=DEFAULT)]

IDS = st.lists(st.one_of(st.integers(0, 4), st.sampled_from([-1, 1 << 40])), min_size=1, max_size=5)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("look"), st.integers(0, 1), IDS, st.booleans()),
        st.tuples(st.just("step"), st.integers(0, 9), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(4, 12)),
        st.tuples(st.sampled_from(["evict", "remove", "upsert"]), IDS, st.integers(-9, 9)),
        st.tuples(st.just("clear")),
    ),
    max_size=14,
)


@pytest.fixture(scope="module")
def owned(servers_beside: list[Server]) -> Iterator[list[tuple[list[Server], list[Any]]]]:
    """Two trainers of one owner, of two, and of three: the owners, and a blocking client for each trainer."""
    with ExitStack() as stack:
        found = []
        for count in (1, 2, 3):
            own = servers_beside[:count]
            addresses = [each.address for each in own]
            found.append((own, [stack.enter_context(tc.connect(*addresses)) for _ in range(2)]))
        yield found


class Model:
    """A table in a dictionary."""

    def __init__(self, sightings: int) -> None:
        self.rows: dict[int, list[float]] = {}  # value, and when it was seen
        self._needed = sightings
        self._sightings: dict[int, int] = {}

    def look_up(self, ids: list[int], now: float) -> dict[int, list[float] | None]:
        for id in set(ids):
            if id not in self.rows:
                self._sightings[id] = self._sightings.get(id, 0) + 1
                if self._sightings[id] >= self._needed:
                    self.rows[id] = [FIRST, now]
            if id in self.rows:
                self.rows[id][1] = now
        return {id: self.rows.get(id) for id in ids}

    def upsert(self, id: int, value: float, now: float) -> None:
        self.rows.setdefault(id, [0.0, 0.0])[:] = [value, now]

    def value(self, id: int) -> float:
        return self.rows[id][0] if id in self.rows else (DEFAULT if self._needed > 1 else FIRST)

    def expired(self, now: float) -> list[int]:
        return [id for id, (_, seen) in self.rows.items() if seen <= now - TTL]

    def clear(self) -> None:
        self.rows.clear()
        self._sightings.clear()


class Pass:
    """A pass of a trainer that may stay open while others come and go."""

    def __init__(self, ps: Any, items: Any, ids: list[int], pooled: bool, rows: dict[int, Any]) -> None:
        self._vars, self._ps, self._items = contextvars.Context(), ps, items
        self.ids, self.rows, self.pooled = ids, rows, pooled
        self._context = ps.context()
        self._vars.run(self._context.__enter__)
        given = torch.tensor(ids)
        look = (lambda: items.bag(given, torch.tensor([0]))) if pooled else (lambda: items(given))
        self.found = self._vars.run(look)

    def step(self, factor: float) -> None:
        self._vars.run(lambda: self._context.backward(self.found.sum() * factor))
        self._vars.run(lambda: self._items.step(self._context))
        self._vars.run(self._context.__exit__, None, None, None)
        for id in self.ids:
            if (row := self.rows[id]) is not None:
                row[0] -= RATE * factor


def run(servers: list[Server], clients: list[Any], operations: list[Any], admit: Any) -> tuple[Any, Any]:
    """Runs a program on a new table, and checks it step by step; returns the table and its model."""
    name, clock = f"table{next(names)}", Clock()
    options = {"init": tc.tables.Constant(FIRST), "admit": admit, "evict": tc.tables.Eviction(ttl=TTL, spare=0.0)}
    tables = [ps.table(name, DIM, tc.tables.SGD(lr=RATE), **options) for ps in clients]
    for server in servers:
        shard_of(server, name, clock)
    model, passes, items = Model(1 if admit is None else 2), [], tables[0]
    for operation in operations:
        match operation:
            case ("look", trainer, ids, pooled):
                rows = model.look_up(ids, clock.now)
                expected = torch.tensor([[model.value(id)] * DIM for id in ids])
                passes.append(Pass(clients[trainer], tables[trainer], ids, pooled, rows))
                assert torch.equal(passes[-1].found.detach(), expected.sum(0, keepdim=True) if pooled else expected)
            case ("step", number, factor) if passes:
                passes.pop(number % len(passes)).step(float(factor))
            case ("wait", seconds):
                clock.now += seconds
            case ("evict", _, _):
                gone = model.expired(clock.now)
                planned = items.evict(dry_run=True)
                assert (planned.rows, sorted(planned.sample.tolist())) == (len(gone), sorted(gone))
                assert items.size() == len(model.rows)
                assert items.evict().rows == len(gone)
                for id in gone:
                    del model.rows[id]
            case ("remove", ids, _):
                assert items.remove(torch.tensor(ids)) == len([model.rows.pop(id) for id in set(ids) & set(model.rows)])
            case ("upsert", ids, value):
                different = list(dict.fromkeys(ids))
                items.upsert(torch.tensor(different), torch.full((len(different), DIM), float(value)))
                for id in different:
                    model.upsert(id, value, clock.now)
            case ("clear",):
                items.clear()
                model.clear()
        assert items.size() == len(model.rows)
    while passes:
        passes.pop().step(1.0)
    return items, model


# The rows of a pass go, and others get their numbers before it steps: by eviction, removal, and all at once.
LATE = [("look", 0, [0, 1, 2, 3], False), ("wait", 12), None, ("look", 1, [4, 5, 6], True), ("step", 0, 3)]
GOING = [("evict", [0], 0), ("remove", [0, 1, 2], 0), ("clear",)]


@settings(max_examples=3)
@example([each or GOING[0] for each in LATE], None)
@example([each or GOING[1] for each in LATE], None)
@example([each or GOING[2] for each in LATE], None)
@given(OPERATIONS, st.sampled_from(ADMISSIONS))
def test_rows_live_as_in_a_dictionary(owned: Any, operations: list[Any], admit: Any) -> None:
    every = torch.tensor([*range(7), -1, 1 << 40])
    found = []
    for servers, clients in owned:
        items, model = run(servers, clients, operations, admit)
        found.append(items(every))
        assert torch.equal(found[-1], torch.tensor([[model.value(id)] * DIM for id in every.tolist()]))
        exported = {id: row for block in items.blocks() for id, row in _rows(block).items()}
        assert exported.keys() == model.rows.keys()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "rows"
            assert items.export(path) == len(model.rows)
            # Into a table with other owners.
            theirs, (other, _) = owned[(len(servers) + 1) % 3]
            target = other.table(
                f"table{next(names)}", DIM, tc.tables.SGD(lr=RATE), evict=tc.tables.Eviction(ttl=TTL, spare=0.0)
            )
            for server in theirs:
                shard_of(server, target.name, Clock())  # rows that have expired stay until they are compared
            with other.context():
                target(torch.tensor([77]))  # goes
            assert target.restore(path) == len(model.rows)
            again = {id: row for block in target.blocks() for id, row in _rows(block).items()}
            assert {id: row[:-1] for id, row in again.items()} == {id: row[:-1] for id, row in exported.items()}
            target.delete()
        items.delete()
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def _rows(block: dict[str, torch.Tensor]) -> dict[int, list[Any]]:
    names = sorted(block.keys() - {"age"})
    assert len(block["ids"].unique()) == len(block["ids"])
    return {
        int(block["ids"][n]): [*(block[each][n].tolist() for each in names), block["age"][n]]
        for n in range(len(block["ids"]))
    }
