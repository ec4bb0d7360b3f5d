"""Latencies of many kinds of work, and the measurement of one piece of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from ps_wire.runtime.latency import WAITING_SECONDS, Latency

K = TypeVar("K", bound=Hashable)

_MOST: Final = 256
"""Most kinds of work that are known at once, by default."""


class Latencies(Generic[K]):
    """The latencies of kinds of work, by a key. Safe to use from several threads.

    Args:
        most: Number of keys after which all are forgotten.
    """

    def __init__(self, most: int = _MOST) -> None:
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
    """Seconds of processor time of this thread; the elapsed time if it has waited for long meanwhile.

    Args:
        began: The times of `time.perf_counter` and `time.thread_time` at the beginning.
    """
    computed = time.thread_time() - began[1]
    passed = time.perf_counter() - began[0]
    return computed if passed - computed < WAITING_SECONDS else passed
