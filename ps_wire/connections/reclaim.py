"""Gives the memory of large messages back to the system when none has been sent or received for a while.

Under load the memory is kept, because fresh memory from the system costs several times as much as copying into it. An
idle process must not keep the gigabytes of its last burst.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Final

from ps_wire.connections.buffers import RECEIVED
from ps_wire.limits import IDLE_SECONDS
from ps_wire.runtime.threads import COPIES

LARGE_BYTES: Final = 32 * 1024
"""Smallest message that counts as use."""


class Reclaimer:
    """Calls a function, in a thread, after some seconds without use. Does nothing without an event loop."""

    def __init__(self, reclaim: Callable[[], object], seconds: float = IDLE_SECONDS) -> None:
        self._reclaim = reclaim
        self._seconds = seconds
        self._last_used = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def used(self) -> None:
        """Notes that a large message was sent or received."""
        now, before = time.monotonic(), self._last_used
        self._last_used = now
        # The loop of the timer may have been closed.
        if self._timer is None or now - before > 2 * self._seconds:
            with suppress(RuntimeError):
                self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def _look(self) -> None:
        left = self._last_used + self._seconds - time.monotonic()
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._look)
        else:
            self._timer = None
            COPIES.start(self._reclaim)


def reclaim() -> None:
    """Frees the unused buffers of the pool, and gives the free memory of malloc back to the system."""
    RECEIVED.clear()
    trim()


def trim() -> None:
    """Gives the free memory of malloc back to the system."""
    function = _malloc_trim()
    if function is not None:
        function(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    # Only in the GNU C library; others give memory back by themselves. It locks one arena after the other, and may be
    # called at any time from any thread.
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return function


RECLAIMER: Final = Reclaimer(reclaim)
"""The reclaimer of this process."""
