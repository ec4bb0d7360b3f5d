"""Seen numbers: the same answers as a set of all of them, in memory that does not grow with their count."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ps_wire.numbers import SeenNumbers


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 40)))
def test_it_remembers_exactly_what_was_added(numbers: list[int]) -> None:
    seen, reference = SeenNumbers(), set[int]()
    for number in numbers:
        seen.add(number)
        reference.add(number)
        assert {n for n in range(1, 50) if n in seen} == reference


def test_the_floor_rises_as_soon_as_a_gap_closes() -> None:
    seen = SeenNumbers()
    for number in (2, 3, 5):
        seen.add(number)
    assert seen.floor == 0
    seen.add(1)
    assert seen.floor == 3
    seen.add(4)
    assert seen.floor == 5
    assert 6 not in seen


def test_numbers_that_arrive_nearly_in_order_take_hardly_any_memory() -> None:
    seen, random_ = SeenNumbers(), random.Random(0)
    for begin in range(1, 10_001, 100):
        block = list(range(begin, begin + 100))
        random_.shuffle(block)
        for number in block:
            seen.add(number)
            assert len(seen._above) < 100
    assert seen.floor == 10_000
    assert not seen._above


def test_a_gap_that_never_closes_does_not_hold_memory_for_ever() -> None:
    seen = SeenNumbers(most=10)
    for number in range(2, 1000):
        seen.add(number)
        assert len(seen._above) <= 10
        assert number in seen
    assert 1 in seen
    assert 1000 not in seen


def test_adding_a_number_again_changes_nothing() -> None:
    seen = SeenNumbers()
    for _ in range(2):
        for number in (1, 2, 4):
            seen.add(number)
        assert (1 in seen, 3 in seen, 4 in seen, seen.floor) == (True, False, True, 2)
        assert seen._above == {4}
