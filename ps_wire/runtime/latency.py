"""Measures how long work takes, without the time for which it waits for the interpreter."""

from __future__ import annotations

import math
import time
from typing import Final

INLINE_SECONDS: Final = 200e-6
"""Work shorter than this runs on the event loop, because a switch of threads would cost more."""

WAITING_SECONDS: Final = 20e-3
"""Work that pauses for longer than this waits for something other than the interpreter lock."""


class Latency:
    """A moving average of how long work would take on the event loop.

    In a busy process most of the time that short work takes in a thread is the wait for the interpreter. That says
    nothing about the work, so the processor time of the thread counts. For work that waits for something else, the
    elapsed time counts.

    Attributes:
        seconds: The average; infinity before the first measurement.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = math.inf

    def note(self, seconds: float) -> None:
        """Adds a measurement, in seconds."""
        self.seconds = seconds if self.seconds == math.inf else 0.8 * self.seconds + 0.2 * seconds

    def begin(self) -> tuple[float, float]:
        """Begins a measurement; the thread hands to `end` what this returns, unless the work has raised."""
        return time.perf_counter(), time.thread_time()

    def end(self, began: tuple[float, float]) -> None:
        """Adds the measurement that `begin` has begun."""
        computed = time.thread_time() - began[1]
        passed = time.perf_counter() - began[0]
        self.note(computed if passed - computed < WAITING_SECONDS else passed)

    @property
    def is_short(self) -> bool:
        """Whether the average is less than `INLINE_SECONDS`."""
        return self.seconds < INLINE_SECONDS
