"""Tests that seen numbers behave like a set of all of them, in bounded memory."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ps_wire.number_set import SeenNumbers


@given(st.lists(st.integers(1, 40)))
def test_the_set_contains_exactly_the_added_numbers(numbers: list[int]) -> None:
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
    assert 1 not in seen
    assert 1000 not in seen
    seen.add(1)
    assert 1 in seen


@given(st.lists(st.integers(1, 60), unique=True))
def test_few_gaps_are_remembered_however_much_comes_after_them(numbers: list[int]) -> None:
    seen = SeenNumbers(most=60)
    for number in (*numbers, *range(61, 400)):
        seen.add(number)
    assert {number for number in range(1, 400) if number not in seen} == set(range(1, 61)) - set(numbers)
    again = SeenNumbers.of(seen.floor, seen.above, seen.holes, most=60)
    assert all((number in seen) == (number in again) for number in range(1, 410))


def test_skipped_numbers_cost_bounded_memory() -> None:
    seen = SeenNumbers(most=100)
    for step in range(1, 1000):
        seen.add(step * 10**15)
        assert len(seen._above) <= 100 and len(seen._holes) <= 100
    assert 999 * 10**15 in seen and 999 * 10**15 + 1 not in seen


def test_an_upload_that_takes_long_is_not_forgotten_while_small_requests_overtake_it() -> None:
    seen = SeenNumbers()
    for number in range(2, 3 * 65_536):
        seen.add(number)
    assert 1 not in seen


def test_adding_a_number_again_changes_nothing() -> None:
    seen = SeenNumbers()
    for _ in range(2):
        for number in (1, 2, 4):
            seen.add(number)
        assert (1 in seen, 3 in seen, 4 in seen, seen.floor) == (True, False, True, 2)
        assert seen._above == {4}


@given(
    st.lists(
        st.one_of(st.integers(1, 40), st.tuples(st.integers(1, 40), st.sets(st.integers(0, 45), max_size=6))),
        max_size=25,
    )
)
def test_covered_ranges_with_exceptions_are_exact(events: list[int | tuple[int, set[int]]]) -> None:
    seen, reference = SeenNumbers(), set[int]()
    for event in events:
        if isinstance(event, int):
            seen.add(event)
            reference.add(event)
        else:
            before, but = event
            seen.cover(before, but)
            reference |= set(range(1, before)) - but
        assert {n for n in range(1, 50) if n in seen} == reference
        assert seen.floor + 1 not in seen
        assert {n for n in range(1, 50) if n in seen.copy()} == reference


def test_exceptions_without_end_take_no_memory_without_end() -> None:
    seen = SeenNumbers(most=10)
    seen.cover(2**63, range(1, 1000))
    assert len(seen.holes) == 10
    assert 999 not in seen and 1 in seen and 2**62 in seen
