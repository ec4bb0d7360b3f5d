"""Waiting for what threads or other processes bring about, which has no event of its own in a test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

SECONDS: Final = 90.0
"""How long is waited at most, on a busy machine."""

_WITHOUT_PAUSE: Final = 0.05
_PAUSE: Final = 0.004


async def until(so: Callable[[], object], pause: float = 0.0) -> None:
    """Lets others run until something is so.

    Args:
        so: Tells whether it is.
        pause: Seconds between two looks. With 0 the first looks are in every turn of the event loop: what lasts for a
            moment only is seen. What takes longer is looked for less often, and the processor is left to others.

    Raises:
        TimeoutError: It has not come to be in time.
    """
    async with asyncio.timeout(SECONDS):
        for seconds in pauses(pause):
            if so():
                return
            await asyncio.sleep(seconds)


def pauses(first: float = 0.0) -> Iterator[float]:
    """Seconds between looks at something, without end: 0 for a while, or `first` all the time."""
    begun = time.monotonic()
    while True:
        yield first or (_PAUSE if time.monotonic() - begun > _WITHOUT_PAUSE else 0.0)
