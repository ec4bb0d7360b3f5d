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
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.running = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, OperationCount] = {}
        # One (second, calls) pair per second of the window.
        self._recent: deque[tuple[int, int]] = deque(maxlen=WINDOW_SECONDS + 1)

    def count(self, operation: str, seconds: float, failed: bool) -> None:
        with self._lock:
            old = self._counts.get(operation, OperationCount())
            self._counts[operation] = OperationCount(old.calls + 1, old.errors + failed, old.seconds + seconds)
            now = int(self._clock())
            if self._recent and self._recent[-1][0] == now:
                self._recent[-1] = (now, self._recent[-1][1] + 1)
            else:
                self._recent.append((now, 1))

    def operations(self) -> dict[str, OperationCount]:
        """A snapshot by name of the operation."""
        with self._lock:
            return dict(self._counts)

    def calls_per_second(self) -> float:
        """Over the last ten whole seconds."""
        now = int(self._clock())
        with self._lock:
            calls = sum(calls for second, calls in self._recent if now - WINDOW_SECONDS <= second < now)
        return calls / WINDOW_SECONDS
