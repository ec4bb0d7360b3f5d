"""Checks regularly for sessions whose lease has run out and for contexts that were unused for too long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ps_wire.runtime import tasks

if TYPE_CHECKING:
    from ps_wire.limits import Limits

_log = logging.getLogger(__name__)


class Sweeper:
    """Calls `sweep` four times within the shortest of the time limits, also after it has raised."""

    def __init__(self, limits: Limits, sweep: Callable[[], None]) -> None:
        self._seconds = min(limits.lease_seconds, limits.max_context_seconds or limits.lease_seconds) / 4
        self._sweep = sweep
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Starts the calls."""
        self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Stops the calls, if they were started."""
        if self._task is not None:
            await tasks.end(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                self._sweep()
            except Exception:
                # The loop must go on: it is what frees the objects of trainers that are gone.
                _log.exception("checking the leases failed; it will be tried again")
