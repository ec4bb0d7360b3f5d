"""Waiting for what threads or other processes bring about, which has no event of its own in a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

SECONDS: Final = 30.0
"""How long is waited at most, on a busy machine."""


async def until(so: Callable[[], object], pause: float = 0.0) -> None:
    """Lets others run until something is so.

    Args:
        so: Tells whether it is.
        pause: Seconds between two looks; 0 looks in every turn of the event loop.

    Raises:
        TimeoutError: It has not come to be in time.
    """
    async with asyncio.timeout(SECONDS):
        while not so():  # noqa: ASYNC110
            await asyncio.sleep(pause)
