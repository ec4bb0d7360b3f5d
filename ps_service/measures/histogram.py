"""Histograms with fixed buckets, and their quantiles."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment: inclusive upper bounds of the buckets, and the number of observations in each.

    The last bucket has no bound, so there is one count more.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    @property
    def cumulative(self) -> list[int]:
        """Number of observations at most each bound; the last is `count`."""
        return list(accumulate(self.counts))


class Histogram:
    """Counts observations by bucket. Not safe from several threads: the caller has to hold a lock.

    The upper bounds ascend; one more bucket lies above the last.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum: float = 0

    def observe(self, number: float) -> None:
        """Adds an observation. Takes a third of a microsecond; called for every request."""
        self._counts[bisect_left(self._bounds, number)] += 1
        self._sum += number

    def snapshot(self) -> Distribution:
        """The counts so far."""
        return Distribution(self._bounds, tuple(self._counts), self._sum)


def merged(histograms: Iterable[Sequence[int]]) -> Counter[int]:
    """Adds histograms: each is an index of a bucket, the number of observations in it, the next index, and so on."""
    found: Counter[int] = Counter()
    for each in histograms:
        for index, number in zip(each[::2], each[1::2], strict=False):
            found[index] += number
    return found


def quantile(q: float, counts: Mapping[int, int], bounds: Sequence[float]) -> float | None:
    """A quantile, as `histogram_quantile` of Prometheus has it: linear within a bucket, and at most the last bound.

    The observations are counted by index of the bucket, as in `Distribution`. None without observations.
    """
    total = sum(counts.values())
    if not total:
        return None
    rank, below = q * total, 0
    for index in sorted(counts):
        number = counts[index]
        if below + number >= rank and number:
            if index >= len(bounds):
                return bounds[-1]
            lower = bounds[index - 1] if index else 0.0
            return lower + (bounds[index] - lower) * max(rank - below, 0.0) / number
        below += number
    return bounds[-1]
