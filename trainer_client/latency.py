"""Measures how long work on the trainer takes, to decide between the event loop and a thread."""

from __future__ import annotations

import math
from typing import Final

INLINE_SECONDS: Final = 200e-6
"""Work that does not wait and takes less than this runs on the event loop: a switch of threads would cost more."""


class Latency:
    """A moving average of durations in seconds.

    Attributes:
        seconds: The average; infinity before the first measurement.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = math.inf

    def note(self, seconds: float) -> None:
        """Adds a measurement, in seconds."""
        self.seconds = seconds if self.seconds == math.inf else 0.8 * self.seconds + 0.2 * seconds
