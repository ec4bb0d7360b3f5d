"""Returns malloc's free memory to the system while an owner is busy, once it has grown large.

Malloc keeps what messages have freed for as long as messages arrive (`ps_wire.connections.reclaim`). In a long pass,
small objects with long lives settle in the gaps, so that the next large ones do not fit there and need new memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import psutil

from ps_wire.connections.reclaim import trim
from ps_wire.limits import MIB
from ps_wire.runtime.threads import BLOCKING

LOOK_SECONDS: Final = 5.0
"""Seconds between two checks. Trimming makes later allocations fault pages in again, so it must be rare."""

TOO_MUCH_BYTES: Final = 512 * MIB
"""Growth, in bytes above the smallest size since the last trim, that makes a trim worthwhile."""


class MemoryKeeper:
    """Trims malloc's free memory, in a thread.

    Args:
        trim: Returns all free memory of the process to the system.
        resident: Returns the resident memory of the process, in bytes.
    """

    def __init__(self, trim: Callable[[], object] = trim, resident: Callable[[], int] | None = None) -> None:
        self._trim = trim
        self._resident = resident or _resident
        self._least = self._resident()

    async def keep(self) -> None:
        """Checks at intervals, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

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
