"""Counters: what happened on an owner, in numbers."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_SECONDS = 10
"""Over how long `calls_per_second` looks back."""


@dataclass(frozen=True, slots=True)
class OperationCount:
    """How often one operation was asked for.

    Attributes:
        calls: Finished requests.
        errors: Those among them that ended in an error.
        seconds: Time from taking a request up to its answer, summed.
    """

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0


class Counters:
    """Counts requests by operation. Safe from several threads.

    Attributes:
        running: Requests that were taken and have no answer yet.
        waiting: Those among them whose result comes later, while no thread works on them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.running = 0
        self.waiting = 0
        self._clock = clock
        self._lock = threading.Lock()
        # Calls, errors and seconds by operation; lists, because they change with every call.
        self._totals: dict[str, list[float]] = {}
        # Second and calls, for each second of the window.
        self._recent: deque[list[int]] = deque(maxlen=WINDOW_SECONDS + 1)

    def wait(self, more: int) -> None:
        """So many more, or fewer, requests wait for their result."""
        with self._lock:
            self.waiting += more

    def count(self, operation: str, seconds: float, failed: bool) -> None:
        now = int(self._clock())
        with self._lock:
            totals = self._totals.get(operation)
            if totals is None:
                totals = self._totals[operation] = [0, 0, 0.0]
            totals[0] += 1
            totals[1] += failed
            totals[2] += seconds
            if self._recent and self._recent[-1][0] == now:
                self._recent[-1][1] += 1
            else:
                self._recent.append([now, 1])

    def operations(self) -> dict[str, OperationCount]:
        """A snapshot by name of the operation."""
        with self._lock:
            return {
                name: OperationCount(int(calls), int(errors), seconds)
                for name, (calls, errors, seconds) in self._totals.items()
            }

    def calls_per_second(self) -> float:
        """Over the last ten whole seconds."""
        now = int(self._clock())
        with self._lock:
            calls = sum(calls for second, calls in self._recent if now - WINDOW_SECONDS <= second < now)
        return calls / WINDOW_SECONDS
