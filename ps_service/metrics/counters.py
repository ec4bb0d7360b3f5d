"""Counters of requests, errors and durations on an owner."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ps_service.measures.histogram import Distribution, Histogram
from ps_service.passes.staleness import StepCounters
from ps_wire.connections.connection import Traffic

WINDOW_SECONDS = 10
"""Seconds over which `calls_per_second` averages."""

DURATION_BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0),
)
"""Buckets of durations, in seconds: from a small call inside one process to a minute of hosted code."""

LOOKS: Final = frozenset(("history", "status", "sessions"))
"""Operations of those who only look at an owner. They are not part of what it is measured by."""

_MOST_UNSUMMED: Final = 256
"""Most finished requests that are noted before they are summed up."""

_UNCOUNTED: Final = "status"
"""The operation whose requests do not count in `calls_per_second`: who only looks makes no work."""

TRANSPORTS: Final = ("grpc", "direct", "shared_memory")
"""The transports, as labels of the traffic counters."""


@dataclass(frozen=True, slots=True)
class OperationCount:
    """How many requests of an operation ended in an error, and the seconds from accepting each to its answer."""

    errors: int
    durations: Distribution


NO_REQUESTS: Final = OperationCount(0, Histogram(DURATION_BOUNDS).snapshot())


class Counters:
    """Counts requests by operation. Safe from several threads, but for `sessions_ended` and `contexts_ended`.

    `running` requests have no answer yet; those of them that are `waiting` wait for a future and hold no thread. `note`
    counts a part of a request that is counted itself afterwards: name of its operation, seconds, error, and whole
    seconds of the monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.running = 0
        self.waiting = 0
        self.traffic = {transport: Traffic() for transport in TRANSPORTS}
        self.steps = StepCounters()
        self.sessions_ended = dict.fromkeys(("lease", "operator", "revoked"), 0)
        # Without those that ended with their session.
        self.contexts_ended = dict.fromkeys(("unused", "operator"), 0)
        self._clock = clock
        self._lock = threading.Lock()
        self._durations: defaultdict[str, Histogram] = defaultdict(partial(Histogram, DURATION_BOUNDS))
        self._failed: Counter[str] = Counter()
        self._queued = Histogram(DURATION_BOUNDS)
        self._errors: Counter[int] = Counter()
        # What has finished since it was summed up: operation, seconds, error, and the second in which it was counted.
        self._finished: deque[tuple[str, float, int, int]] = deque()
        self.note: Final = self._finished.append
        # The calls in each of the latest seconds with calls.
        self._recent: Counter[int] = Counter()

    @property
    def is_busy(self) -> bool:
        """Whether a request is queued, or runs in a compute thread."""
        return self.running > self.waiting

    def wait(self, more: int) -> None:
        """Adds to the number of requests that wait for a future; negative to subtract."""
        with self._lock:
            self.waiting += more

    def count(self, operation: str, seconds: float, error: int = 0) -> None:
        """Counts a request that has finished some seconds after it was accepted, with the code of its error, or 0."""
        # `append` and `popleft` of a deque are atomic.
        self.note((operation, seconds, error, int(self._clock())))
        if len(self._finished) > _MOST_UNSUMMED:
            with self._lock:
                self._sum_up()

    def _sum_up(self) -> None:
        """Adds up what was counted. The lock is held."""
        for _ in range(len(self._finished)):
            operation, seconds, error, second = self._finished.popleft()
            self._durations[operation].observe(seconds)
            if error:
                self._failed[operation] += 1
                self._errors[error] += 1
            if operation != _UNCOUNTED:
                self._recent[second] += 1
        while len(self._recent) > WINDOW_SECONDS + 1:
            del self._recent[min(self._recent)]

    def refuse(self, error: int) -> None:
        """Counts a request that was refused with an error of that code."""
        with self._lock:
            self._errors[error] += 1

    def queued(self, seconds: float) -> None:
        """Notes how long a request waited for a compute thread."""
        with self._lock:
            self._queued.observe(seconds)

    def operations(self) -> dict[str, OperationCount]:
        """A snapshot, by name of the operation."""
        with self._lock:
            self._sum_up()
            return {name: OperationCount(self._failed[name], each.snapshot()) for name, each in self._durations.items()}

    def errors(self) -> dict[int, int]:
        """Number of requests answered with an error, by code, refused ones included."""
        with self._lock:
            self._sum_up()
            return dict(self._errors)

    def queue_seconds(self) -> Distribution:
        """Distribution of the seconds that requests waited for a compute thread."""
        with self._lock:
            return self._queued.snapshot()

    def calls_per_second(self) -> float:
        """Finished requests per second but for `status`, over the last ten whole seconds."""
        now = int(self._clock())
        with self._lock:
            self._sum_up()
            return sum(self._recent[second] for second in range(now - WINDOW_SECONDS, now)) / WINDOW_SECONDS
