"""A moving average of how long something takes."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

INLINE_SECONDS: Final = 200e-6
"""Work shorter than this runs on the event loop, because a hop to a thread would cost more."""


class Latency:
    """A moving average of durations.

    Attributes:
        seconds: The average; infinity before the first measurement.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = math.inf

    def note(self, seconds: float) -> None:
        """Adds a measurement, in seconds."""
        self.seconds = seconds if self.seconds == math.inf else 0.8 * self.seconds + 0.2 * seconds

    def measured(self) -> Measurement:
        """Measures a block; a block that raises is not counted."""
        return Measurement(self)

    @property
    def is_short(self) -> bool:
        """Whether it takes less than `INLINE_SECONDS`."""
        return self.seconds < INLINE_SECONDS


class Measurement:
    """Takes the time of one block."""

    __slots__ = ("_began", "_latency")

    def __init__(self, latency: Latency) -> None:
        self._latency = latency

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._latency.note(time.perf_counter() - self._began)
