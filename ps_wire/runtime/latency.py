"""Measures how long work takes, without the time for which it waits for the interpreter."""

from __future__ import annotations

import math
import time
from typing import Final

INLINE_SECONDS: Final = 200e-6
"""Work shorter than this runs on the event loop, because a switch of threads would cost more."""

SEVERAL: Final = 4
"""Work that is larger than the largest short work by more than this factor does not count as short."""

WAITING_SECONDS: Final = 20e-3
"""Work that pauses for longer than this waits for something other than the interpreter lock."""


class Latency:
    """A moving average of how long work would take on the event loop.

    In a busy process most of the time that short work takes in a thread is the wait for the interpreter. That says
    nothing about the work, so the processor time of the thread counts. For work that waits for something else, the
    elapsed time counts.

    Attributes:
        seconds: The average; infinity before the first measurement.
        largest: The size of the largest work that was short, in the unit of the caller.
    """

    __slots__ = ("largest", "seconds")

    def __init__(self) -> None:
        self.seconds = math.inf
        self.largest = 0

    def note(self, seconds: float, size: int = 0) -> None:
        """Adds a measurement, in seconds, of work of some size."""
        if seconds < INLINE_SECONDS and size > self.largest:
            self.largest = size
        self.seconds = seconds if self.seconds == math.inf else 0.8 * self.seconds + 0.2 * seconds

    def begin(self) -> tuple[float, float]:
        """Begins a measurement; the thread hands to `end` what this returns, unless the work has raised."""
        return time.perf_counter(), time.thread_time()

    def end(self, began: tuple[float, float], size: int = 0) -> bool:
        """Adds the measurement that `begin` has begun; returns whether the work was short."""
        computed = time.thread_time() - began[1]
        passed = time.perf_counter() - began[0]
        seconds = computed if passed - computed < WAITING_SECONDS else passed
        self.note(seconds, size)
        return seconds < INLINE_SECONDS

    def is_short_for(self, size: int) -> bool:
        """Whether the average is short, and work of about this size has been short before."""
        return self.seconds < INLINE_SECONDS and size <= SEVERAL * self.largest

    @property
    def is_short(self) -> bool:
        """Whether the average is less than `INLINE_SECONDS`."""
        return self.seconds < INLINE_SECONDS
