"""What an owner asks of malloc: to keep free memory while it is busy, and to give it back once there is very much.

In a long pass, small objects with long lives settle in the gaps, so that the next large ones need new memory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Final

import psutil

from ps_wire.connections.buffers import teach_malloc, trim
from ps_wire.limits import MIB
from ps_wire.runtime.threads import BLOCKING

LOOK_SECONDS: Final = 5.0
"""Seconds between two checks. Trimming makes later allocations fault pages in again, so it must be rare."""

TOO_MUCH_BYTES: Final = 512 * MIB
"""Growth, in bytes above the smallest size since the last trim, that makes a trim worthwhile."""

_M_TOP_PAD: Final = -2
_HEAP_BYTES: Final = 64 * MIB


def keep_free_memory() -> None:
    """Lets the GNU C library keep the memory that passes have freed in compute threads. Does nothing elsewhere.

    Threads unmap a heap of 64 MiB as soon as it is empty, unless there is so much padding, and the next pass has
    thousands of page faults. What was free for a while still goes back (`ps_wire.connections.buffers`).
    """
    teach_malloc()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    set_by_user = "MALLOC_TOP_PAD_" in os.environ or "glibc.malloc.top_pad" in os.environ.get("GLIBC_TUNABLES", "")
    if mallopt is not None and not set_by_user:
        mallopt(_M_TOP_PAD, _HEAP_BYTES)


class MemoryKeeper:
    """Trims malloc's free memory, in a thread, by the resident memory of the process in bytes."""

    def __init__(self, trim: Callable[[], object] = trim, resident: Callable[[], int] | None = None) -> None:
        self._trim = trim
        self._resident = resident or _resident
        self._least = self._resident()

    async def look(self) -> bool:
        """Trims if that is worthwhile; returns whether it did."""
        now = self._resident()
        self._least = min(self._least, now)
        if now - self._least < TOO_MUCH_BYTES:
            return False
        await BLOCKING.run(self._trim)
        # What is left is in use, so it becomes the new baseline.
        self._least = self._resident()
        return True


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)
