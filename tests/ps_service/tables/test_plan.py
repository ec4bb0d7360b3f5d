"""Tests plans of tables against tables that are filled."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_service.tables.id_map import hashed_map
from ps_service.tables.plan import PlannedTable, enough_owners, plan
from ps_service.tables.shard import TableShard
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.lifecycle import Eviction
from ps_wire.tables.options import SGD, LazyAdam, RowOptimizer, RowWiseAdagrad
from ps_wire.tables.routing import SLOTS, slots_of

GIB = 1 << 30


@pytest.fixture
def same_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a map of ids depends on its random salt a little; here it is the same in every run."""
    monkeypatch.setattr(hashed_map, "secrets", SimpleNamespace(randbits=lambda bits: 0x9E3779B97F4A7C15))


def items(rows: int = 50_000_000, **options: object) -> PlannedTable:
    return PlannedTable("items", rows, 64, RowWiseAdagrad(), **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("same_salt")
@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9), RowWiseAdagrad(), LazyAdam()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_takes_the_planned_bytes(optimizer: RowOptimizer, dtype: torch.dtype) -> None:
    rows = 60_000
    shard = TableShard(8, optimizer, dtype=dtype, max_rows=rows)
    shard.look_up(torch.arange(rows))
    planned = PlannedTable("t", rows, 8, optimizer, dtype).row_bytes
    assert 0.95 * planned <= shard.memory / rows <= 1.01 * planned


@pytest.mark.usefixtures("same_salt")
@pytest.mark.parametrize("evict", [Eviction(ttl=60.0), Eviction(at_capacity="least_frequent")], ids=str)
def test_a_row_that_may_be_evicted_takes_the_planned_bytes(evict: Eviction) -> None:
    rows = 60_000
    shard = TableShard(1, SGD(), max_rows=rows, eviction=evict)
    shard.look_up(torch.arange(rows))
    planned = PlannedTable("t", rows, 1, SGD(), evict=evict).row_bytes
    assert 0.95 * planned <= shard.memory / rows <= 1.01 * planned


def test_two_owners_hold_no_more_rows_than_planned() -> None:
    rows = 200_000
    made = plan([PlannedTable("t", rows, 4, SGD())], {"ps0": GIB, "ps1": GIB, "ps2": GIB})
    assert sum(part.slots for part in made.parts) == SLOTS
    owners = torch.arange(SLOTS) * 3 // SLOTS
    held = torch.bincount(owners[slots_of(torch.randperm(rows) * 7919)], minlength=3)
    assert torch.bincount(owners).tolist() == [part.slots for part in made.parts]
    for part, count in zip(made.parts, held.tolist(), strict=True):
        assert 0.97 * part.rows < count <= part.rows


def test_a_plan_names_what_lies_where() -> None:
    users = PlannedTable("users", 1000, 16, SGD(), owners=("ps1",))
    made = plan([items(1000), users], {"ps1": GIB, "ps0": GIB})
    assert [(part.table, part.owner, part.slots) for part in made.parts] == [
        *(("items", "ps0", SLOTS // 2), ("items", "ps1", SLOTS // 2), ("users", "ps1", SLOTS))
    ]
    assert made.used["ps1"] == made.parts[1].nbytes + 1000 * users.row_bytes
    assert made.fits


def test_owners_that_are_not_there_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="table 'items' is for 'ps7'"):
        plan([items(owners=("ps0", "ps7"))], {"ps0": GIB})
    with pytest.raises(InvalidArgumentError, match="at least one owner"):
        plan([items()], {})


@given(rows=st.integers(1, 10**9), budget=st.integers(10**4, 10**11))
def test_enough_owners_are_the_fewest_that_fit(rows: int, budget: int) -> None:
    enough = enough_owners([items(rows)], budget)
    if enough > 1:
        assert not plan([items(rows)], {f"ps{n}": budget for n in range(enough - 1)}).fits
    if enough:
        assert plan([items(rows)], {f"ps{n}": budget for n in range(enough)}).fits


def test_no_number_of_owners_is_enough_for_a_row_that_is_too_large() -> None:
    assert enough_owners([items()], 100) == 0
