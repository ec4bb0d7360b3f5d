"""Histograms: how often a number fell between which bounds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment.

    Attributes:
        bounds: Upper bounds of the buckets, which belong to them; the last bucket has none.
        counts: How many numbers fell into each bucket, one more than there are bounds.
        sum: All numbers together.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many numbers there were."""
        return sum(self.counts)

    @property
    def cumulative(self) -> list[int]:
        """How many numbers were at most each bound; the last is `count`."""
        return list(accumulate(self.counts))


class Histogram:
    """Counts numbers by bucket. Not safe from several threads: whoever has one guards it with a lock of its own.

    Args:
        bounds: Upper bounds of the buckets, ascending; above the last there is one more bucket.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum: float = 0

    def observe(self, number: float) -> None:
        """One more number. Takes a third of a microsecond: it is done for every request."""
        self._counts[bisect_left(self._bounds, number)] += 1
        self._sum += number

    def snapshot(self) -> Distribution:
        """What has been counted so far."""
        return Distribution(self._bounds, tuple(self._counts), self._sum)
