"""Memory: what malloc keeps goes back to the system while an owner is busy, too, when it has become very much.

Malloc keeps what messages have freed, for as long as messages come (`ps_wire.connections.reclaim`). In a long pass
small objects that live on come to lie in the gaps, so that the next large ones do not fit there and need new memory.
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
"""How often it is looked. Whoever needs a page again waits for it a little: that must be rare."""

TOO_MUCH_BYTES: Final = 512 * MIB
"""By how much the process must have grown beyond what it needed at some time since the last look that helped."""


class MemoryKeeper:
    """Has free memory given back, in a thread.

    Args:
        trim: Gives all free memory of the process back.
        resident: How much memory the process has, in bytes.
    """

    def __init__(self, trim: Callable[[], object] = trim, resident: Callable[[], int] | None = None) -> None:
        self._trim = trim
        self._resident = resident or _resident
        self._least = self._resident()

    async def keep(self) -> None:
        """Looks again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> bool:
        """Gives free memory back if that is worth while; says whether it has tried."""
        now = self._resident()
        self._least = min(self._least, now)
        if now - self._least < TOO_MUCH_BYTES:
            return False
        await BLOCKING.run(self._trim)
        # What is left is in use: it is not looked for again.
        self._least = self._resident()
        return True


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)
