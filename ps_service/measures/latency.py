"""Pace: how long something takes, on the average of late."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

QUICK_SECONDS: Final = 200e-6
"""What takes less than this would lose more by a hop to a thread than the event loop loses by waiting for it."""


class Latency:
    """A moving average of durations.

    Attributes:
        seconds: The average; infinite while nothing is known.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = math.inf

    def note(self, seconds: float) -> None:
        """It took so long."""
        self.seconds = seconds if math.isinf(self.seconds) else 0.8 * self.seconds + 0.2 * seconds

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Takes the time of a block, unless it raises."""
        began = time.perf_counter()
        yield
        self.note(time.perf_counter() - began)

    @property
    def is_short(self) -> bool:
        """Whether it has taken less than `QUICK_SECONDS`."""
        return self.seconds < QUICK_SECONDS
