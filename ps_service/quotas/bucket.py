"""Limits a rate, and lets what has not been used for a while be used at once."""

from __future__ import annotations

import math
from typing import Final

_SECONDS: Final = 10.0
"""Over how many seconds the rate is averaged that is shown."""


class Bucket:
    """A token bucket that may go into debt: who takes from it waits until the debt is paid. Times are in seconds.

    Not safe from several threads.
    """

    def __init__(self, now: float) -> None:
        self._missing = 0.0
        self._then = now
        self._lately = 0.0

    def take(self, amount: float, rate: float, now: float) -> None:
        """Takes an amount. The bucket is full at first, and is filled with `rate` a second."""
        self._missing = self._left(rate, now) + amount
        self._lately = self.per_second(now) * _SECONDS + amount
        self._then = now

    def wait(self, amount: float, rate: float, burst: float, now: float) -> float:
        """How long to wait until so much can be taken, of a bucket that holds `burst`."""
        return max(0.0, (self._left(rate, now) + amount - burst) / rate)

    def per_second(self, now: float) -> float:
        """How much was taken lately in a second."""
        return self._lately / _SECONDS * math.exp(-(now - self._then) / _SECONDS)

    def _left(self, rate: float, now: float) -> float:
        missing = self._missing - (now - self._then) * rate
        return max(0.0, missing) if rate < math.inf else 0.0
