"""Tests that a number is counted in the first bucket whose bound it does not exceed."""

from __future__ import annotations

import pytest

from ps_service.measures.histogram import Histogram


@pytest.mark.parametrize(
    ("number", "bucket"), [(-1.0, 0), (0, 0), (1, 1), (1.5, 2), (2, 2), (2.5, 3), (4, 3), (4.1, 4), (float("inf"), 4)]
)
def test_bounds_belong_to_their_buckets(number: float, bucket: int) -> None:
    histogram = Histogram((0, 1, 2, 4))
    histogram.observe(number)
    assert [place for place, count in enumerate(histogram.snapshot().counts) if count] == [bucket]


def test_a_snapshot_adds_up_and_does_not_change() -> None:
    histogram = Histogram((1, 2))
    for number in (0.5, 1.5, 1.75, 9.0):
        histogram.observe(number)
    before = histogram.snapshot()
    histogram.observe(9.0)
    assert (before.bounds, before.counts, before.cumulative) == ((1, 2), (1, 2, 1), [1, 3, 4])
    assert (before.count, before.sum) == (4, 12.75)


def test_without_numbers_everything_is_0() -> None:
    empty = Histogram((1.0,)).snapshot()
    assert (empty.counts, empty.cumulative, empty.count, empty.sum) == ((0, 0), [0, 0], 0, 0)
