"""Reclaim: memory of large messages goes back to the system once none has crossed for a while.

While messages come, their memory is kept, because memory fresh from the system costs several times what copying into it
does. A process that has nothing to do must not sit on the gigabytes of its last burst.
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
"""Messages from this size on count."""


class Reclaimer:
    """Does something once nothing was used for a while. Without an event loop, it does nothing.

    Args:
        reclaim: What to do, in a thread.
        seconds: How long nothing has to be used before.
    """

    def __init__(self, reclaim: Callable[[], object], seconds: float = IDLE_SECONDS) -> None:
        self._reclaim = reclaim
        self._seconds = seconds
        self._last_used = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def used(self) -> None:
        """A large message came or left."""
        now, before = time.monotonic(), self._last_used
        self._last_used = now
        # The loop on which it would have rung may have ended.
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
    """Gives everything back that no message uses: our own buffers, and what malloc keeps of those that were freed."""
    RECEIVED.clear()
    trim()


def trim() -> None:
    """Gives back what malloc keeps of memory that was freed."""
    function = _malloc_trim()
    if function is not None:
        function(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    # The GNU C library's; others return memory by themselves. It locks one arena after the other, and may be called at
    # any time from any thread.
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return function


RECLAIMER: Final = Reclaimer(reclaim)
"""Of this process."""
