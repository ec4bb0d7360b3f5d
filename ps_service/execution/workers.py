"""The threads of a pool, and which of them count towards its size.

A pool runs a fixed number of threads at once. Two kinds of threads do not count, so that others replace them: threads
whose work waits for another process or for a lock, and lost threads, whose work was abandoned. Python cannot end a
thread, so a lost thread may run without end. As many lost threads are replaced as there are spare ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_service.execution.fair_queue import WorkItem
    from ps_service.execution.loop_calls import LoopCalls

_log = logging.getLogger(__name__)

REPORT_SECONDS: Final = 1.0
"""Seconds after which abandoned work that still runs is logged."""


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class Worker:
    """One thread of the pool.

    Attributes:
        woken: Released when an idle worker is to look for work.
        called: When that was, on the clock `time.perf_counter`.
        waits: Number of nested waits it is in.
        waited: Seconds that its work item has waited.
        lost: Whether its work was abandoned.
        spared: Whether a spare thread replaces it, because it is lost.
    """

    woken: threading.Lock = field(default_factory=_held)
    called: float = 0.0
    item: WorkItem | None = None
    waits: int = 0
    waited: float = 0.0
    lost: bool = False
    spared: bool = False
    thread: threading.Thread = field(init=False)
    _began: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether it counts towards the number of threads that run at once."""
        return not self.waits and not self.spared

    def begin_wait(self) -> None:
        self.waits += 1
        if self.waits == 1:
            self._began = time.perf_counter()

    def end_wait(self) -> None:
        self.waits -= 1
        if not self.waits:
            self.waited += time.perf_counter() - self._began


class Workers:
    """The threads of a pool. Its methods are not safe from several threads; its attributes may be read by any.

    At most `most` threads run at once, and `spare` lost threads do not count. `missing` threads may still be added;
    there are too many if it is negative. `lost` counts the lost threads by trainer.
    """

    def __init__(self, most: int, spare: int) -> None:
        self.most = most
        self.spare = spare
        self.missing = most
        self.all: list[Worker] = []
        self.lost: Counter[bytes] = Counter()

    def add(self, worker: Worker) -> None:
        self.all.append(worker)
        self.missing -= 1

    def remove(self, worker: Worker) -> None:
        self.all.remove(worker)
        self.missing += 1

    @property
    def waiting(self) -> int:
        """Number of threads whose work waits for another process or for a lock."""
        return sum(1 for worker in list(self.all) if worker.waits)

    @property
    def is_stalled(self) -> bool:
        """Whether lost threads take up all that may run at once."""
        return sum(1 for worker in list(self.all) if worker.lost and worker.counts) >= self.most

    @property
    def computing(self) -> int:
        """Number of threads that run something and do not wait, at least one."""
        return max(1, sum(1 for worker in list(self.all) if worker.item is not None and worker.counts))

    def running(self, item: WorkItem) -> Worker | None:
        """The worker that runs a work item, or None."""
        return next((worker for worker in self.all if worker.item is item), None)

    def begin_wait(self, worker: Worker) -> None:
        self.missing += worker.counts
        worker.begin_wait()

    def end_wait(self, worker: Worker) -> None:
        worker.end_wait()
        self.missing -= worker.counts

    def lose(self, worker: Worker) -> None:
        """Marks a worker as lost, because its work was abandoned."""
        assert worker.item is not None
        worker.lost = True
        self.lost[worker.item.of] += 1
        if sum(1 for each in self.all if each.spared) < self.spare:
            self.missing += worker.counts
            worker.spared = True

    def regain(self, worker: Worker, item: WorkItem) -> None:
        """Undoes `lose`; another lost worker gets the spare thread that this one no longer needs."""
        worker.lost = False
        self.lost[item.of] -= 1
        if not self.lost[item.of]:
            del self.lost[item.of]
        if not worker.spared:
            return
        worker.spared = False
        self.missing -= worker.counts
        other = next((each for each in self.all if each.lost and not each.spared), None)
        if other is not None:
            self.missing += other.counts
            other.spared = True


class LostThreadReports:
    """Reports the lost threads of a pool, and whether abandoned work holds all of its threads, spare ones included.

    `lock` guards the workers. `when_stalled` is called on the event loop when that changes.
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
        self._loop_calls.tell(lambda: self._when_stalled(self.stalled))

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
