"""Measures how long work takes, without the time for which it waits for the interpreter; also by kinds of work."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

INLINE_SECONDS: Final = 200e-6
"""Work shorter than this always runs on the event loop, because a switch of threads would cost more."""

WAITING_SECONDS: Final = 20e-3
"""Work that pauses for longer than this waits for something other than the interpreter lock."""

FAR_SECONDS: Final = 10e-3
"""Processor time of work that others notice if it was expected to be short, and runs on the event loop."""

DISTRUST: Final = 100
"""Nothing counts as short after such work, for this many times as long as it took."""

K = TypeVar("K", bound=Hashable)


class Latency:
    """Moving averages of how long work would take on the event loop: one for each power of two of its size. Work of a
    size for which nothing was measured counts as long.

    In a busy process most of the time that short work takes in a thread is the wait for the interpreter. So the
    processor time of the thread counts, but for work that waits for something else the elapsed time.

    The size does not tell everything: a recurrent layer takes a thousand times as long for one sequence of a thousand
    steps as for a thousand sequences of one. So after work that took far longer than expected, all work counts as long
    for a while. Such work takes at most one hundredth of the time of the event loop then.
    """

    __slots__ = ("_distrusted_until", "_last", "_seconds")

    def __init__(self) -> None:
        self._last = 0
        # By the number of bits of the size.
        self._seconds: dict[int, float] = {}
        self._distrusted_until = 0.0

    def note(self, seconds: float, size: int = 0) -> None:
        """Adds a measurement, in seconds, of work of some size, in a unit of the caller."""
        self._last = bits = size.bit_length()
        before = self._seconds.get(bits)
        self._seconds[bits] = seconds if before is None else 0.8 * before + 0.2 * seconds

    def begin(self) -> tuple[float, float]:
        """Begins a measurement; the thread hands to `end` what this returns, unless the work has raised."""
        return time.perf_counter(), time.thread_time()

    def end(self, began: tuple[float, float], size: int = 0) -> float:
        """Adds the measurement that `begin` has begun, and returns it, in seconds."""
        computed = time.thread_time() - began[1]
        now = time.perf_counter()
        passed = now - began[0]
        # The elapsed time may be long only because the machine is busy.
        if computed > FAR_SECONDS > 2 * self.expected(size):
            self._distrusted_until = now + DISTRUST * computed
        seconds = computed if passed - computed < WAITING_SECONDS else passed
        # As in `note`.
        self._last = bits = size.bit_length()
        before = self._seconds.get(bits)
        self._seconds[bits] = seconds if before is None else 0.8 * before + 0.2 * seconds
        return seconds

    def expected(self, size: int = 0) -> float:
        """The seconds that work of this size takes; infinity if none of about this size was measured."""
        if self._distrusted_until and time.perf_counter() < self._distrusted_until:
            return math.inf
        return self._seconds.get(size.bit_length(), math.inf)

    @property
    def seconds(self) -> float:
        """The seconds that work takes of the size that was measured last; infinity if none was measured."""
        if self._distrusted_until and time.perf_counter() < self._distrusted_until:
            return math.inf
        return self._seconds.get(self._last, math.inf)

    @property
    def is_short(self) -> bool:
        """Whether work without a size takes less than `INLINE_SECONDS`."""
        return self.expected() < INLINE_SECONDS


class Latencies(Generic[K]):
    """The latencies of kinds of work, by a key; after `most` keys all are forgotten. Safe from several threads."""

    def __init__(self, most: int = 256) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._known: dict[K, Latency] = {}

    def of(self, key: K) -> Latency:
        """The latency of a kind of work; a new one if there is none yet."""
        latency = self._known.get(key)
        if latency is None:
            with self._lock:
                if len(self._known) >= self._most:
                    self._known.clear()
                latency = self._known.setdefault(key, Latency())
        return latency


def busy_since(began: tuple[float, float]) -> float:
    """Seconds of processor time of this thread since the times of `time.perf_counter` and `time.thread_time`; the
    elapsed time if it has waited for long meanwhile."""
    computed = time.thread_time() - began[1]
    passed = time.perf_counter() - began[0]
    return computed if passed - computed < WAITING_SECONDS else passed
