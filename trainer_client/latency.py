"""Latency: a moving average of how long work on the trainer takes, which decides where it runs."""

from __future__ import annotations

import math
from typing import Final

INLINE_SECONDS: Final = 200e-6
"""Work that waits for nothing and takes less than this runs on the event loop: the hop to a thread would cost more."""


class Latency:
    """A moving average of durations.

    Attributes:
        seconds: The average; infinity before the first measurement.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = math.inf

    def note(self, seconds: float) -> None:
        """Adds a measurement."""
        self.seconds = seconds if self.seconds == math.inf else 0.8 * self.seconds + 0.2 * seconds
