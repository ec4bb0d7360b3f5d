"""Tests of bags of which some ids are taken, held to lists."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.tables.bags import Bags, make_bags
from ps_wire.tables.routing import Routing, slots_of

_lists = st.lists(st.lists(st.integers(-3, 3), max_size=4), max_size=6)


def _as_lists(bags: Bags) -> list[list[tuple[int, float]]]:
    weights = torch.ones(len(bags.ids)) if bags.weights is None else bags.weights
    pairs = list(zip(bags.ids.tolist(), weights.tolist(), strict=True))
    return [
        pairs[begin : begin + count] for begin, count in zip(bags.offsets.tolist(), bags.counts.tolist(), strict=True)
    ]


@given(_lists, st.booleans())
def test_the_same_bags_with_some_of_their_ids(lists: list[list[int]], weighted: bool) -> None:
    counts = torch.tensor([len(each) for each in lists], dtype=torch.int64)
    ids = torch.tensor([id for each in lists for id in each], dtype=torch.int64)
    whole = Bags(ids, counts, torch.arange(len(ids)).float() if weighted else None)
    some = whole.some(ids > 0)
    assert _as_lists(some) == [[pair for pair in each if pair[0] > 0] for each in _as_lists(whole)]
    assert _as_lists(make_bags(ids, counts.cumsum(0) - counts, "sum", whole.weights, False, 2)) == [
        [pair for pair in each if pair[0] != 2] for each in _as_lists(whole)
    ]


@given(_lists, st.booleans(), st.integers(1, 4))
def test_the_same_bags_split_into_parts(lists: list[list[int]], weighted: bool, parts: int) -> None:
    counts = torch.tensor([len(each) for each in lists], dtype=torch.int64)
    ids = torch.tensor([id for each in lists for id in each], dtype=torch.int64)
    whole = Bags(ids, counts, torch.arange(len(ids)).float() if weighted else None)
    split = whole.split(ids.remainder(parts), parts)
    assert [_as_lists(each) for each in split] == [
        [[pair for pair in each if pair[0] % parts == part] for each in _as_lists(whole)] for part in range(parts)
    ]


def test_owners_of_ids_of_any_shape() -> None:
    routing = Routing.even(["a", "b", "c"])
    for shape in ((0,), (7,), (2, 3, 4)):
        ids = torch.randint(-(1 << 62), 1 << 62, shape)
        assert torch.equal(routing.owner_of(ids), routing.of_slot[slots_of(ids)])
