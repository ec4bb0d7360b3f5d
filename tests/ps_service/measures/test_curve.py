"""Tests the curve of a value: whatever comes, it is bounded and in order, and nothing that has come is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service.measures.curve import MOST_POINTS, Curve, Points, first_changed

FLOATS = st.floats(allow_nan=True, allow_infinity=True)
STEPS = st.integers(-3, 5)


def made(values: Sequence[float], versions: Sequence[int] | None = None) -> Curve:
    curve = Curve()
    for index, value in enumerate(values):
        curve.add(index + 1 if versions is None else versions[index], value, 1000.0 + index)
    return curve


def rows(points: Points) -> list[tuple[float, ...]]:
    return list(zip(*points, strict=True))


@st.composite
def sequences(draw: st.DrawFn) -> list[float]:
    """Some values, over and over, so that curves are full and merged some times."""
    some = draw(st.lists(FLOATS, min_size=1, max_size=40))
    times = draw(st.sampled_from((1, 10, 11, 60, 400)))
    return (some * times)[: 9 * MOST_POINTS]


@given(sequences())
def test_nothing_is_lost_however_often_points_are_merged(values: list[float]) -> None:
    curve = made(values)
    points = curve.points()
    finite = [value for value in values if math.isfinite(value)]
    assert sum(points.finite) == len(finite)
    assert sum(points.finite) + sum(points.not_finite) == curve.seen == len(values)
    assert min((low for low in points.low if low == low), default=None) == min(finite, default=None)
    assert max((high for high in points.high if high == high), default=None) == max(finite, default=None)
    exact = sum(map(Fraction, finite), Fraction())
    found = sum(
        (Fraction(mean) * count for mean, count in zip(points.mean, points.finite, strict=True) if count), Fraction()
    )
    largest = max(map(abs, finite), default=0.0)
    assert abs(found - exact) <= Fraction(largest) * len(values) * Fraction(1e-12)
    for mean, low, high, count in zip(points.mean, points.low, points.high, points.finite, strict=True):
        assert low <= mean <= high if count else math.isnan(mean) and math.isnan(low) and math.isnan(high)


@given(sequences())
def test_it_is_bounded_and_every_point_stands_for_as_many_values(values: list[float]) -> None:
    curve = made(values)
    points = curve.points()
    assert len(curve) == len(points.finite) <= MOST_POINTS
    assert len(values) < MOST_POINTS or len(curve) >= MOST_POINTS // 2
    of_each = [count + rest for count, rest in zip(points.finite, points.not_finite, strict=True)]
    assert set(of_each[:-1]) <= {curve.width} and 1 <= of_each[-1] <= curve.width
    for index, (first, last, at) in enumerate(
        zip(points.first_version, points.last_version, points.time_seconds, strict=True)
    ):
        assert first == index * curve.width + 1
        assert last == min((index + 1) * curve.width, len(values)) == at - 999


@given(sequences(), st.lists(FLOATS, max_size=2 * MOST_POINTS))
def test_one_that_is_made_again_from_its_points_goes_on_as_before(values: list[float], later: list[float]) -> None:
    curve = made(values)
    again = Curve.of(curve.seen, curve.width, curve.points())
    for index, value in enumerate(later):
        for each in (curve, again):
            each.add(len(values) + index, value, 5000.0 + index)
    assert again.seen == curve.seen and again.width == curve.width
    before, now = curve.points(), again.points()
    # Sums are made of means again, which were rounded.
    assert list(now.mean) == pytest.approx(list(before.mean), rel=1e-9, abs=1e-300, nan_ok=True)
    # As texts, because NaN is not equal to itself.
    assert str(now._replace(mean=[])) == str(before._replace(mean=[]))


@pytest.mark.parametrize("of", ["too many", "short", "empty", "wide", "count"])
def test_other_points_are_refused(of: str) -> None:
    points = made([1.0, 2.0, 3.0]).points()
    seen, width = 3, 1
    if of == "too many":
        points, seen = Points(*(list(each) * MOST_POINTS for each in points)), 3 * MOST_POINTS
    elif of == "short":
        points = points._replace(mean=points.mean[1:])
    elif of == "empty":
        points = points._replace(finite=[1, 0, 2])
    elif of == "wide":
        width = 2
    else:
        seen = 4
    with pytest.raises(ValueError, match="points"):
        Curve.of(seen, width, points)


@given(st.lists(STEPS, min_size=1, max_size=2000))
def test_points_are_in_the_order_of_versions(steps: list[int]) -> None:
    versions, version = [], 10
    for step in steps:
        version = max(version + step, 0)
        versions.append(version)
    points = made([0.0] * len(versions), versions).points()
    limits = [limit for pair in zip(points.first_version, points.last_version, strict=True) for limit in pair]
    assert limits == sorted(limits)
    assert limits[0] == versions[0] and limits[-1] == max(versions)


def test_whole_numbers_have_exact_means() -> None:
    values = [float(index % 7 - 3) for index in range(36_000)]
    points = made(values).points()
    width = 36_000 // MOST_POINTS
    while width & (width - 1):
        width += 1
    assert made(values).width == width == 128
    for index, mean in enumerate(points.mean):
        of = values[index * width : (index + 1) * width]
        assert mean == sum(of) / len(of)


def test_the_largest_and_the_smallest_numbers_have_a_mean() -> None:
    largest, smallest = 1.7976931348623157e308, 5e-324
    assert made([largest] * (2 * MOST_POINTS + 1)).points().mean[0] == largest
    assert made([smallest] * (2 * MOST_POINTS + 1)).points().mean[0] == smallest


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_gap_of_its_own(value: float) -> None:
    points = made([1.0, value, 3.0]).points()
    assert (list(points.finite), list(points.not_finite)) == ([1, 0, 1], [0, 1, 0])
    assert points.mean[0] == 1.0 and math.isnan(points.mean[1]) and points.mean[2] == 3.0
    assert list(points.first_version) == [1, 2, 3]


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_what_has_changed_makes_an_older_curve_the_newer_one(one: int, other: int) -> None:
    before, now = sorted((one, other))
    values = [float(index * index % 101) for index in range(now)]
    older, newer = made(values[:before]), made(values)
    start = first_changed(before, now)
    assert rows(older.points())[:start] + rows(newer.points(start)) == rows(newer.points())
