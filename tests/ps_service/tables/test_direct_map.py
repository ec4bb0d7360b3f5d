"""Tests of the maps with an entry for each id, which do what the hash table does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_service.tables import compiled
from ps_service.tables.id_map import IdMap, make_id_map
from ps_service.tables.id_map.direct_map import MOST_IDS, MOST_SHARES, DirectMap
from ps_service.tables.reservation import Reservation
from ps_service.tables.shard import TableShard
from ps_wire.errors import TooLargeError
from ps_wire.tables.options import SGD

IMPLEMENTATIONS = ["torch", *(["numba"] if compiled.available() else [])]
IDS = 50

MakeMap = Callable[[int], IdMap]


@pytest.fixture(params=IMPLEMENTATIONS)
def make_map(request: pytest.FixtureRequest) -> MakeMap:
    return lambda capacity: make_id_map(capacity, request.param, IDS)


_ids = st.lists(st.one_of(st.integers(0, 5), st.integers(0, IDS - 1)), max_size=30)
_steps = st.lists(st.tuples(st.sampled_from(["add", "remove", "find", "clear"]), _ids), max_size=12)


@given(_steps, st.integers(1, IDS), st.booleans())
def test_all_maps_do_the_same(steps: list[tuple[str, list[int]]], most: int, reserved: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not reserved:
            patch.setattr(Reservation, "make", lambda count, dtype: None)
        maps = [make_id_map(IDS, each, ids) for each in IMPLEMENTATIONS for ids in (None, IDS)]
        for what, ids in steps:
            results = [_done(each, what, torch.tensor(ids, dtype=torch.int64), most) for each in maps]
            assert results[1:] == results[:-1]


def _done(id_map: IdMap, what: str, ids: torch.Tensor, most: int) -> object:
    """What a map returns, and what it holds then."""
    found: object = None
    match what:
        case "add":
            try:
                found = [each.tolist() for each in id_map.find_or_add(ids, most)]
            except TooLargeError as error:
                found = str(error)
        case "remove":
            found = id_map.remove(ids).tolist()
        case "find":
            found = id_map.find(ids).tolist()
        case "clear":
            id_map.clear()
    held, rows = id_map.items()
    every, in_use = id_map.between(0, IDS)
    assert every[in_use].tolist() == held.tolist() == id_map.ids_of(rows).tolist()
    return found, held.tolist(), rows.tolist(), len(id_map)


def test_other_ids_have_no_row_and_get_none(make_map: MakeMap) -> None:
    map_ = make_map(IDS)
    map_.find_or_add(torch.tensor([0, IDS - 1]), IDS)
    outside = torch.tensor([-1, IDS, 2**63 - 1, -(2**63), 1 << 32, IDS - 1])
    assert map_.find(outside).tolist() == [-1, -1, -1, -1, -1, 1]
    assert map_.remove(outside[:-1]).tolist() == []
    for wrong in (-1, IDS, 1 << 32):
        with pytest.raises(IndexError, match="0 to 49"):
            map_.find_or_add(torch.tensor([1, wrong]), IDS)
    assert map_.items()[0].tolist() == [0, IDS - 1]


def test_a_table_of_fixed_size_has_such_a_map_where_it_takes_no_more_memory() -> None:
    def is_direct(rows: int | None, owners: int) -> bool:
        return isinstance(TableShard(1, SGD(), rows=rows, owners=owners)._map, DirectMap)

    assert is_direct(1000, 1) and is_direct(MOST_IDS, MOST_SHARES)
    assert not is_direct(None, 1) and not is_direct(MOST_IDS + 1, 1) and not is_direct(1000, MOST_SHARES + 1)


def test_entries_take_the_memory_that_is_said(make_map: MakeMap) -> None:
    map_ = make_map(IDS)
    assert map_.memory == 4 * IDS
    map_.find_or_add(torch.arange(10), IDS)
    assert map_.memory == 4 * IDS + 8 * 10
