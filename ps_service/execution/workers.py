"""The threads of a pool, and which of them count towards its size.

Others replace threads whose work waits for another process or for a lock, so that nested calls cannot use up all, and
as many lost threads, whose work was abandoned, as there are spare ones: Python cannot end a thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_service.execution.fair_queue import WorkItem


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False)
class Worker:
    """One thread of the pool. `woken` is released, at `called`, when it is idle and is to look for work.

    It is in so many nested `waits`, and its work item has `waited` so many seconds. It is `lost` if its work was
    abandoned, and `spared` if a spare thread replaces it then.
    """

    woken: threading.Lock = field(default_factory=_held)
    called: float = 0.0
    item: WorkItem | None = None
    waits: int = 0
    waited: float = 0.0
    lost: bool = False
    spared: bool = False
    thread: threading.Thread = field(init=False)
    began_wait: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether it counts towards the number of threads that run at once."""
        return not self.waits and not self.spared


class Workers:
    """The threads of a pool. Its methods are not safe from several threads; its attributes may be read by any.

    At most `most` threads run at once, and `spare` lost threads do not count. `missing` threads may still be added;
    there are too many if it is negative. `lost` counts the lost threads by trainer, or by group.
    """

    def __init__(self, most: int, spare: int) -> None:
        self.most = most
        self.spare = spare
        self.missing = most
        self.all: list[Worker] = []
        self.lost: Counter[bytes | str] = Counter()

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
        worker.waits += 1
        if worker.waits == 1:
            worker.began_wait = time.perf_counter()

    def end_wait(self, worker: Worker) -> None:
        worker.waits -= 1
        if not worker.waits:
            worker.waited += time.perf_counter() - worker.began_wait
        self.missing -= worker.counts

    def lose(self, worker: Worker) -> None:
        """Marks a worker as lost, because its work was abandoned."""
        assert worker.item is not None
        worker.lost = True
        self.lost[worker.item.whose] += 1
        if sum(1 for each in self.all if each.spared) < self.spare:
            self.missing += worker.counts
            worker.spared = True

    def regain(self, worker: Worker, item: WorkItem) -> None:
        """Undoes `lose`; another lost worker gets the spare thread that this one no longer needs."""
        worker.lost = False
        self.lost[item.whose] -= 1
        if not self.lost[item.whose]:
            del self.lost[item.whose]
        if not worker.spared:
            return
        worker.spared = False
        self.missing -= worker.counts
        other = next((each for each in self.all if each.lost and not each.spared), None)
        if other is not None:
            self.missing += other.counts
            other.spared = True
