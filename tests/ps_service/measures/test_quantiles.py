"""Tests the quantiles of sparse histograms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service.measures.histogram import merged, quantile

BOUNDS = (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("counts", "q", "found"),
    [
        ({}, 0.5, None),
        ({0: 10}, 0.5, 0.5),
        ({0: 5, 2: 5}, 0.5, 1.0),
        ({0: 5, 2: 5}, 0.75, 3.0),
        ({2: 1}, 1.0, 4.0),
        ({0: 1, 3: 1}, 0.99, 4.0),  # above the last bound
    ],
)
def test_a_quantile_is_linear_within_its_bucket(counts: dict[int, int], q: float, found: float | None) -> None:
    assert quantile(q, counts, BOUNDS) == found


def test_histograms_are_added() -> None:
    assert merged([(0, 1, 3, 2), (), (3, 1)]) == {0: 1, 3: 3}


@given(st.lists(st.floats(0, 4, exclude_min=True), min_size=1), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    def bucket(value: float) -> int:
        return sum(value > bound for bound in BOUNDS)

    counts = merged([(bucket(value), 1) for value in values])
    found = quantile(q, counts, BOUNDS)
    assert found is not None
    rank = max(0, min(len(values) - 1, -int(-q * len(values) // 1) - 1))  # the smallest value that covers q
    true = bucket(sorted(values)[rank])
    lower = (0.0, *BOUNDS)[true]
    assert lower - 1e-9 <= found <= BOUNDS[true] + 1e-9
