"""Logs the threads that abandoned work holds, and tells when it holds all of them."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from ps_service.execution.fair_queue import WorkItem
    from ps_service.execution.loop_calls import LoopCalls
    from ps_service.execution.workers import Worker, Workers

_log = logging.getLogger(__name__)

REPORT_SECONDS: Final = 1.0
"""Seconds after which abandoned work that still runs is logged."""


class LostThreadReports:
    """Reports the lost threads of a pool.

    Args:
        workers: The threads.
        lock: Guards them.
        loop_calls: Calls functions on the event loop.
        when_stalled: Called on the event loop with whether the pool is stalled, when that changes.

    Attributes:
        stalled: Whether abandoned work holds all threads, spare ones included.
    """

    def __init__(
        self,
        workers: Workers,
        lock: threading.RLock,
        loop_calls: LoopCalls,
        when_stalled: Callable[[bool], None],
    ) -> None:
        self.stalled = False
        self._workers = workers
        self._lock = lock
        self._loop_calls = loop_calls
        self._when_stalled = when_stalled
        self._reported: set[str] = set()

    def later(self, worker: Worker) -> None:
        """Logs the work of a lost worker after a second, if it still runs then."""
        assert worker.item is not None
        self._loop_calls.later(REPORT_SECONDS, partial(self._report, worker, worker.item))

    def look(self) -> None:
        """Logs and tells whether the pool is stalled, if that has changed. The lock must be held."""
        stalled = self._workers.is_stalled
        if stalled == self.stalled:
            return
        self.stalled = stalled
        if stalled:
            text = "stalled: all %d threads and %d spare ones are held by work that was given up"
            _log.error(text, self._workers.most, self._workers.spare)
        else:
            _log.warning("no longer stalled: threads are free again")
        self._loop_calls.soon(lambda: self._when_stalled(self.stalled))

    def _report(self, worker: Worker, item: WorkItem) -> None:
        """Logs abandoned work that still runs, once for each description."""
        with self._lock:
            if not worker.lost or worker.item is not item:
                return
            name, lost = item.what(), self._workers.lost.total()
            lasting = {each.item.what() for each in self._workers.all if each.item is not None and each.lost}
            known = name in self._reported
            # Work that has ended is logged again if it is abandoned another time.
            self._reported = (self._reported | {name}) & lasting
        if not known:
            _log.warning(
                "%s is still running although it was given up; %d threads are held this way, and at most %d others "
                "replace them",
                name or "some work",
                lost,
                self._workers.spare,
            )
