"""Tests that equal arguments have equal bytes, and different ones have not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service.requests.asked import canonical
from tests.ps_service.requests.asking import value

numbers = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.integers(-3, 3), st.sampled_from([0.0, -0.0, 1.0, 2.0**53, 2.0**80])
)


def written(python: Any) -> bytes:
    return canonical(value(python)).SerializeToString(deterministic=True)


@given(numbers, numbers)
def test_numbers_are_the_same_when_python_says_so(a: float, b: float) -> None:
    assert (written(a) == written(b)) == (a == b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0),
        ((0.9, 1), [0.9, 1.0]),
        ({"lr": 1, "betas": (0, 0.9)}, {"betas": [0.0, 0.9], "lr": 1.0}),
        (2**70, float(2**70)),
        (slice(0, 2, None), slice(0.0, 2.0, None)),
        (math.nan, math.nan),
        ([], ()),
    ],
    ids=repr,
)
def test_equal_arguments_are_the_same(a: Any, b: Any) -> None:
    assert written(a) == written(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, True), (0, False), (0.0, False), (0, None), ("1", 1), (b"1", "1"), ([1], [[1]]), ({}, []), (2**53, 2**53 + 1)],
    ids=repr,
)
def test_different_arguments_are_not(a: Any, b: Any) -> None:
    assert written(a) != written(b)
