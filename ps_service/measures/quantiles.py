"""Quantiles of histograms with few observations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence


def merged(histograms: Iterable[Sequence[int]]) -> Counter[int]:
    """Adds histograms: each is an index of a bucket, the number of observations in it, the next index, and so on."""
    found: Counter[int] = Counter()
    for each in histograms:
        for index, number in zip(each[::2], each[1::2], strict=False):
            found[index] += number
    return found


def quantile(q: float, counts: Mapping[int, int], bounds: Sequence[float]) -> float | None:
    """A quantile, as `histogram_quantile` of Prometheus estimates it: linear within a bucket.

    Args:
        q: Between 0 and 1.
        counts: Number of observations by index of the bucket.
        bounds: Inclusive upper bounds of the buckets; one more bucket lies above the last.

    Returns:
        The estimate; the last bound if it lies above that; None without observations.
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
