"""Counters: what happened on an owner, in numbers."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ps_service.measures.histogram import Distribution, Histogram
from ps_service.passes.staleness import StepCounters
from ps_wire.connections.traffic import Traffic

WINDOW_SECONDS = 10
"""Over how long `calls_per_second` looks back."""

DURATION_BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0),
)
"""Buckets of durations, in seconds: from a small call inside one process to a minute of hosted code."""

TRANSPORTS: Final = ("grpc", "shared_memory")
"""What carries messages between processes."""


@dataclass(frozen=True, slots=True)
class OperationCount:
    """How often one operation was asked for, and how long it took.

    Attributes:
        errors: Finished requests that ended in an error.
        durations: Of every finished request, the seconds from taking it up to its answer.
    """

    errors: int
    durations: Distribution

    @property
    def calls(self) -> int:
        """Finished requests."""
        return self.durations.count

    @property
    def seconds(self) -> float:
        """Their durations, summed."""
        return self.durations.sum


class _Tally:
    __slots__ = ("durations", "errors")

    def __init__(self) -> None:
        self.errors = 0
        self.durations = Histogram(DURATION_BOUNDS)


class Counters:
    """Counts requests by operation. Safe from several threads.

    Attributes:
        running: Requests that were taken and have no answer yet.
        waiting: Those among them whose result comes later, while no thread works on them.
        traffic: Bytes that crossed, by transport.
        steps: The steps of optimizers.
        sessions_ended: Sessions that the owner ended, by reason: `lease` or `operator`. Used on the event loop.
        contexts_ended: Open contexts that it ended, by reason: `unused` or `operator`; those of sessions that ended do
            not count. Used on the event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.running = 0
        self.waiting = 0
        self.traffic = {transport: Traffic() for transport in TRANSPORTS}
        self.steps = StepCounters()
        self.sessions_ended = dict.fromkeys(("lease", "operator"), 0)
        self.contexts_ended = dict.fromkeys(("unused", "operator"), 0)
        self._clock = clock
        self._lock = threading.Lock()
        self._tallies: dict[str, _Tally] = {}
        self._queued = Histogram(DURATION_BOUNDS)
        self._errors: Counter[int] = Counter()
        # Second and calls, for each second of the window.
        self._recent: deque[list[int]] = deque(maxlen=WINDOW_SECONDS + 1)

    def wait(self, more: int) -> None:
        """So many more, or fewer, requests wait for their result."""
        with self._lock:
            self.waiting += more

    def count(self, operation: str, seconds: float, error: int = 0) -> None:
        """One request is finished.

        Args:
            operation: Its name.
            seconds: Since it was taken up.
            error: Code of the error it ended in; 0 if it ended well.
        """
        now = int(self._clock())
        with self._lock:
            tally = self._tallies.get(operation)
            if tally is None:
                tally = self._tallies[operation] = _Tally()
            tally.durations.observe(seconds)
            if error:
                tally.errors += 1
                self._errors[error] += 1
            if self._recent and self._recent[-1][0] == now:
                self._recent[-1][1] += 1
            else:
                self._recent.append([now, 1])

    def refuse(self, error: int) -> None:
        """A request was answered with an error of that code, and never taken up."""
        with self._lock:
            self._errors[error] += 1

    def queued(self, seconds: float) -> None:
        """A compute thread begins with a request that had waited for one so long."""
        with self._lock:
            self._queued.observe(seconds)

    def operations(self) -> dict[str, OperationCount]:
        """A snapshot by name of the operation."""
        with self._lock:
            return {
                name: OperationCount(tally.errors, tally.durations.snapshot()) for name, tally in self._tallies.items()
            }

    def errors(self) -> dict[int, int]:
        """How many requests were answered with an error, by its code; also those that were not taken up."""
        with self._lock:
            return dict(self._errors)

    def queue_seconds(self) -> Distribution:
        """How long requests waited for a compute thread."""
        with self._lock:
            return self._queued.snapshot()

    def calls_per_second(self) -> float:
        """Over the last ten whole seconds."""
        now = int(self._clock())
        with self._lock:
            calls = sum(calls for second, calls in self._recent if now - WINDOW_SECONDS <= second < now)
        return calls / WINDOW_SECONDS
