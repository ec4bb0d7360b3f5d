"""Ends the requests of a session at their deadlines, with one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_service.requests.execution import Execution


class Deadlines:
    """Watches the deadlines of a session's queued requests, with one timer, for the earliest deadline that was known
    when it was set.

    A timer for each request would cost more than many requests do, and nearly all are answered long before their
    deadline. When the timer fires, all requests are checked, and it is set again if any is left. Requests with an
    answer are removed from `running` by their owner.
    """

    __slots__ = ("_at", "_running", "_timer")

    def __init__(self, running: Mapping[int, Execution]) -> None:
        self._running = running
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def watch(self, execution: Execution) -> None:
        """Ends a request at its deadline, unless it has been removed by then."""
        loop = asyncio.get_running_loop()
        execution.deadline = deadline = loop.time() + execution.seconds
        if self._timer is None or deadline < self._at:
            self._set(loop, deadline)

    def close(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.close()
        self._at = deadline
        self._timer = loop.call_at(deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        earliest = math.inf
        for execution in list(self._running.values()):
            if not execution.seconds:
                continue
            if execution.deadline <= now:
                execution.expire()
            else:
                earliest = min(earliest, execution.deadline)
        if earliest < math.inf:
            self._set(loop, earliest)
