"""Names of new owners, and what several owners know of one thing."""

from __future__ import annotations

import pytest
import torch

from ps_service.durability.resharding.placement import named
from ps_service.durability.resharding.split_table import merged, same
from ps_service.durability.store import CheckpointError


@pytest.mark.parametrize(
    ("owners", "before", "after"),
    [
        (3, ("ps0", "ps1"), ("ps0", "ps1", "ps2")),
        (1, ("ps0", "ps1"), ("ps0",)),
        (4, ("ps9", "ps10"), ("ps10", "ps11", "ps12", "ps9")),
        (1, ("ps10", "ps9"), ("ps9",)),
        (2, ("owner-3",), ("owner-3", "owner-4")),
        (1, ("a", "b"), ("a",)),
        (("b", "a"), ("ps0",), ("a", "b")),
    ],
)
def test_new_owners_have_the_names_of_before_and_the_next_ones(
    owners: tuple[str, ...] | int, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    assert named(owners, before) == after


@pytest.mark.parametrize("before", [("a", "b"), ("ps0", "host1")])
def test_names_without_numbers_do_not_go_on(before: tuple[str, ...]) -> None:
    with pytest.raises(CheckpointError, match="name the new owners"):
        named(3, before)


@pytest.mark.parametrize("name", ["../a", "/tmp/a", "a/b", "..", ".", ""])
def test_names_do_not_lead_out_of_the_folder(name: str) -> None:
    with pytest.raises(CheckpointError, match="no name of an owner"):
        named((name, "b"), ("ps0",))


def test_what_owners_have_counted_is_put_together_by_its_largest_values() -> None:
    one = {"counters": torch.tensor([1, 5], dtype=torch.uint8), "left": 3, "kind": "filter", "none": None}
    other = {"counters": torch.tensor([4, 2], dtype=torch.uint8), "left": 7, "kind": "filter", "none": None}
    expected = {"counters": torch.tensor([4, 5], dtype=torch.uint8), "left": 7, "kind": "filter", "none": None}
    assert same(merged([one, other]), expected) and not same(one, expected)
    assert merged([one]) is one
    for strange in ({**other, "kind": "lottery"}, {**other, "counters": torch.zeros(3)}, None):
        with pytest.raises(CheckpointError, match="as many owners"):
            merged([one, strange])


def test_plain_values_are_the_same_if_all_of_their_parts_are() -> None:
    assert same({"a": [1, (torch.ones(2), None)]}, {"a": [1, (torch.ones(2), None)]})
    assert not same({"a": [1]}, {"a": [1, 2]}) and not same({"a": 1}, {"b": 1}) and not same(torch.ones(1), 1)
