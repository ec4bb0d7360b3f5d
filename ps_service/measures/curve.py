"""The curve of one value that trainers report: all of it at falling resolution, in a bounded number of points."""

from __future__ import annotations

import math
from array import array
from itertools import repeat
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_POINTS: Final = 400
"""Most points of a curve. When it is full, each two points become one, so that it has half of them again."""

_SCALE: Final = 2.0**-64
"""By what sums are smaller than they are, so that those of the largest numbers do not overflow. A power of two, which
rounds nothing but numbers below 1e-288."""


class Points(NamedTuple):
    """Points that follow each other, by column. Each stands for values that followed each other.

    They were reported for the versions `first_version` to `last_version`, the last of them at the Unix time
    `time_seconds`. `finite` counts those that are finite numbers. They have this `mean`, and are from `low` to `high`:
    NaN, if there are none. `not_finite` counts the others, NaN and infinity, which count nowhere else.
    """

    first_version: Sequence[int]
    last_version: Sequence[int]
    finite: Sequence[int]
    not_finite: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    time_seconds: Sequence[float]


class Curve:
    """The values of one name. The points have `width` values each, but for the last one, which may have fewer.

    `seen` counts the values. The caller's lock guards it.
    """

    __slots__ = ("_at", "_count", "_first", "_high", "_last", "_low", "_not_finite", "_total", "seen", "width")

    def __init__(self) -> None:
        self.seen = 0
        self.width = 1
        self._first, self._last = array("Q"), array("Q")
        self._count, self._not_finite = array("Q"), array("Q")
        self._total, self._low, self._high, self._at = array("d"), array("d"), array("d"), array("d")

    @classmethod
    def of(cls, seen: int, width: int, points: Points) -> Curve:
        """The curve whose `points()` these are. Raises `ValueError` if no curve of so many values has them."""
        number = len(points.first_version)
        if not number <= MOST_POINTS or any(map(number.__ne__, map(len, points))) or width != _width(seen):
            raise ValueError("these are not the points of a curve")
        counts = list(map(add, points.finite, points.not_finite))
        if sum(counts) != seen or any(map(width.__ne__, counts[:-1])) or not all(0 < each <= width for each in counts):
            raise ValueError("points of a curve have as many values as its width says")
        curve = cls()
        curve.seen, curve.width = seen, width
        curve._first, curve._last = array("Q", points.first_version), array("Q", points.last_version)
        curve._count, curve._not_finite = array("Q", points.finite), array("Q", points.not_finite)
        curve._total = array("d", map(_total, points.mean, points.finite))
        curve._low = array("d", map(_or, points.low, points.finite, repeat(math.inf)))
        curve._high = array("d", map(_or, points.high, points.finite, repeat(-math.inf)))
        curve._at = array("d", points.time_seconds)
        return curve

    def __len__(self) -> int:
        """The number of points."""
        return len(self._first)

    def add(self, version: int, value: float, at: float) -> None:
        """Adds a value that was reported for a version of its optimizer, `at` a Unix time. One that comes later than
        that of a later version counts for that one, so that points are in order."""
        if not self.seen % self.width:
            self._begin(version)
        self.seen += 1
        if version > self._last[-1]:
            self._last[-1] = version
        self._at[-1] = at
        if math.isfinite(value):
            self._count[-1] += 1
            self._total[-1] += value * _SCALE
            if value < self._low[-1]:
                self._low[-1] = value
            if value > self._high[-1]:
                self._high[-1] = value
        else:
            self._not_finite[-1] += 1

    def points(self, start: int = 0) -> Points:
        """A copy of the points from one on."""
        count, total = self._count[start:], self._total[start:]
        low, high = self._low[start:], self._high[start:]
        mean = array("d", map(_mean, total, count, low, high))
        for index, number in enumerate(count):
            if not number:
                low[index] = high[index] = math.nan
        versions = self._first[start:], self._last[start:]
        return Points(*versions, count, self._not_finite[start:], mean, low, high, self._at[start:])

    def _begin(self, version: int) -> None:
        if len(self) == MOST_POINTS:
            self._halve()
        version = max(version, self._last[-1]) if self._last else version
        self._first.append(version)
        self._last.append(version)
        self._count.append(0)
        self._not_finite.append(0)
        self._total.append(0.0)
        self._low.append(math.inf)
        self._high.append(-math.inf)
        self._at.append(0.0)

    def _halve(self) -> None:
        """Makes one point of each two."""
        self.width *= 2
        self._first, self._last, self._at = self._first[::2], self._last[1::2], self._at[1::2]
        self._count = array("Q", map(add, self._count[::2], self._count[1::2]))
        self._not_finite = array("Q", map(add, self._not_finite[::2], self._not_finite[1::2]))
        self._total = array("d", map(add, self._total[::2], self._total[1::2]))
        self._low = array("d", map(min, self._low[::2], self._low[1::2]))
        self._high = array("d", map(max, self._high[::2], self._high[1::2]))


def _mean(total: float, count: int, low: float, high: float) -> float:
    # Rounded, it may be beyond the numbers that it is of.
    return min(max(total / count / _SCALE, low), high) if count else math.nan


def _total(mean: float, count: int) -> float:
    return mean * _SCALE * count if count else 0.0


def _or(value: float, count: int, empty: float) -> float:
    return value if count else empty


def first_changed(before: int, now: int) -> int:
    """The first point that differs between a curve of `before` values and the same one of `now` values."""
    width = _width(now)
    return before // width if _width(before) == width else 0


def _width(seen: int) -> int:
    width = 1
    while seen > MOST_POINTS * width:
        width *= 2
    return width
