"""What an owner has measured in each of the last seconds. The owner keeps it, so that who looks later sees it, too."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ps_wire.v1 import operations_pb2 as pb

SAMPLE_SECONDS: Final = 1.0
"""Seconds between two samples."""

KEPT_SAMPLES: Final = 600
"""Samples that are kept: ten minutes."""


class Sample(NamedTuple):
    """What an owner measured within about a second, which `ended` on the monotonic clock. The message lacks its age."""

    ended: float
    message: pb.Sample


class History:
    """The last samples of an owner. Used on the event loop."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)

    def add(self, sample: Sample) -> None:
        """Adds the newest sample; the oldest goes if there are too many."""
        self._samples.append(sample)

    def after(self, number: int, most: int = KEPT_SAMPLES) -> list[Sample]:
        """The samples with a larger number, the oldest first, and of these the first `most`."""
        if not self._samples:
            return []
        begin = min(max(number + 1 - self._samples[0].message.number, 0), len(self._samples))
        return list(islice(self._samples, begin, begin + most))


def buckets(counts: Iterable[int], before: Iterable[int]) -> list[int]:
    """The few observations that a histogram has got: index of a bucket, number of observations in it, next index …"""
    found: list[int] = []
    for index, (now, then) in enumerate(zip(counts, before, strict=True)):
        if now > then:
            found += (index, now - then)
    return found
