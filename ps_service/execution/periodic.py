"""Calls a function of an owner again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ps_wire.runtime import tasks

_log = logging.getLogger(__name__)


class Periodic:
    """Calls a function on the event loop, and waits for its coroutine, again and again with `seconds` in between.

    What it raises is logged, with what has failed, and it is called again.
    """

    def __init__(self, seconds: float, do: Callable[[], Awaitable[Any] | object], what: str) -> None:
        self._seconds = seconds
        self._do = do
        self._what = what
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Starts the calls."""
        self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Stops the calls, if they were started. Calling it again does nothing."""
        if self._task is not None:
            await tasks.end(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                done = self._do()
                if isinstance(done, Awaitable):
                    await done
            except Exception:
                # The loop must go on: it is what frees the objects of trainers that are gone, for example.
                _log.exception("%s failed; it will be tried again", self._what)
