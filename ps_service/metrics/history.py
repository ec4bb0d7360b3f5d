"""What an owner has measured in each of the last seconds. The owner keeps it, so that who looks later sees it, too."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

SAMPLE_SECONDS: Final = 1.0
"""Seconds between two samples."""

KEPT_SAMPLES: Final = 600
"""Samples that are kept: ten minutes."""

Buckets = tuple[int, ...]
"""A histogram with few observations: index of a bucket, number of observations in it, next index …"""


@dataclass(frozen=True, slots=True)
class OperationSample:
    """The requests of one operation that finished within a sample; durations in the buckets of `DURATION_BOUNDS`."""

    name: str
    errors: int
    durations: Buckets


@dataclass(frozen=True, slots=True)
class Sample:
    """What an owner measured within about a second.

    Attributes:
        number: 1, 2, 3 … since the owner started.
        ended: When it ended, on the monotonic clock.
        trainer_steps: Steps of all trainers: a pass is one, however many optimizers step.
        staleness: That of the steps of all optimizers, in the buckets of `STALENESS_BOUNDS`.
        connected_sessions: Trainers that are connected at its end. What follows are values at its end, too.
        request_bytes: Payloads of large requests, also of those that wait for others.
        answer_bytes: Payloads of answers that are not confirmed or not sent.
        context_bytes: Bytes of open contexts and of kept results.
    """

    number: int
    ended: float
    seconds: float
    steps: int
    trainer_steps: int
    staleness: Buckets
    operations: tuple[OperationSample, ...]
    received_bytes: int
    sent_bytes: int
    connected_sessions: int
    requests_in_flight: int
    resident_bytes: int
    parameter_bytes: int
    table_bytes: int
    request_bytes: int
    answer_bytes: int
    context_bytes: int


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
        begin = max(number + 1 - self._samples[0].number, 0)
        return list(islice(self._samples, begin, begin + most))


def buckets(counts: Iterable[int], before: Iterable[int]) -> Buckets:
    """The observations that a histogram has got, from its counts now and before."""
    found: list[int] = []
    for index, (now, then) in enumerate(zip(counts, before, strict=True)):
        if now > then:
            found += (index, now - then)
    return tuple(found)
