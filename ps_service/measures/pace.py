"""How fast a trainer or an optimizer goes on: its steps, their rate, and how stale the latest were.

Nothing runs while nobody asks: a step adds to the count of its second, and the rate is computed when it is read.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

WINDOW_SECONDS: Final = 10
"""Whole seconds over which a rate is an average, if there are enough steps in them."""

LATEST: Final = 512
"""Steps whose staleness is kept, for its quantiles."""

_ENOUGH: Final = 10
"""Steps within the window that make the rate its average. With fewer, it is by the distance between steps."""

_STOPPED: Final = 3
"""After so many times that distance without a step, there is no rate any more."""


class Staleness(NamedTuple):
    """Quantiles of the staleness of the latest steps, in steps of others."""

    p50: int
    p99: int


class Pace:
    """The steps of one trainer or optimizer, and how many were counted. Safe from several threads."""

    __slots__ = ("_clock", "_in_second", "_lock", "_of", "_past", "_second", "_staleness", "steps")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.steps = 0
        self._of: Hashable = None
        # The latest second with a step, and those before: (second, steps).
        self._second = self._in_second = 0
        self._past: deque[tuple[int, int]] = deque(maxlen=WINDOW_SECONDS)
        self._staleness: deque[int] = deque(maxlen=LATEST)

    def count(self, of: Hashable = None, staleness: int | None = None) -> None:
        """Counts a step. `of` is what it belongs to; those that follow and belong to the same do not count.

        Its staleness is the number of steps of others since the parameters were read; None if that is not known.
        """
        now = int(self._clock())
        with self._lock:
            if of is not None and of == self._of:
                return
            self._of = of
            self.steps += 1
            if now != self._second:
                if self._in_second:
                    self._past.append((self._second, self._in_second))
                self._second, self._in_second = now, 0
            self._in_second += 1
            if staleness is not None:
                self._staleness.append(staleness)

    def per_second(self) -> float:
        """Steps per second over the last ten whole seconds, or since the first step if that is less.

        If there were few, it is one by the mean distance between the latest; 0 once none came for three times as long.
        """
        now = int(self._clock())
        with self._lock:
            counted = (*self._past, (self._second, self._in_second))
        seconds = [each for each in counted if each[1] and each[0] < now]
        if not seconds:
            return 0.0
        first, last = seconds[0][0], seconds[-1][0]
        since = max(first, now - WINDOW_SECONDS)
        recent = sum(steps for second, steps in seconds if second >= since)
        if recent >= _ENOUGH or first == last:
            return recent / (now - since)
        distance = (last - first) / (sum(steps for _, steps in seconds) - 1)
        return 1 / distance if now - last <= max(WINDOW_SECONDS, _STOPPED * distance) else 0.0

    def staleness(self) -> Staleness | None:
        """How stale the latest steps were; None if that is not known of any."""
        with self._lock:
            found = sorted(self._staleness)
        return Staleness(_quantile(found, 0.5), _quantile(found, 0.99)) if found else None


def _quantile(found: Sequence[int], share: float) -> int:
    """The smallest of sorted numbers that at least that share of them does not exceed."""
    return found[max(0, math.ceil(share * len(found)) - 1)]
