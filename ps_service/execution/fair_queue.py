"""A fair queue of work for the compute threads.

Each trainer has its own queue, and the trainer that has used the least thread time is next (start-time fair queueing).
A trainer saves up no credit while it asks for nothing. The trainers of a group, such as those of an identity, have one
turn together, which they share in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

Work = Callable[[], None]
"""A callback for the event loop. Must not raise."""

_REMEMBERED: Final = 32
"""Number of trainers with a queue above which idle queues are removed."""


@dataclass(slots=True, eq=False)
class WorkItem:
    """A unit of work for a compute thread, of a trainer in a group, if that is not empty, with a description for log
    messages. Its time counts for an account, if there is one.

    An `urgent` one goes before the trainer's other work: work that has begun waits for it. One `apart` runs in the
    administration thread, and must be short. Nobody waits for an `abandoned` one; a `lasting` one runs nevertheless.
    """

    of: bytes = b""
    urgent: bool = False
    what: Callable[[], str] = str
    apart: bool = False
    lasting: bool = False
    abandoned: bool = False
    group: str = ""
    account: Any = None
    trainer_queue: TrainerQueue | None = None
    group_queue: TrainerQueue | None = None

    @property
    def whose(self) -> bytes | str:
        """Whose turn it is: that of its group, if it is in one, else of its trainer."""
        return self.group or self.of


@dataclass(slots=True, eq=False)
class TrainerQueue:
    """The queued work of one trainer, or of one group, whose is in `trainers`, and how many work items are running.

    `used` is the thread time that it has used, and is estimated to use by what runs, in seconds. `estimate` is a moving
    average of the seconds that one work item takes, and `correction` by how much estimates in `used` were too low.
    """

    used: float = 0.0
    estimate: float = 0.0
    correction: float = 0.0
    running: int = 0
    urgent: deque[tuple[WorkItem, Callable[[], Work]]] = field(default_factory=deque)
    items: deque[tuple[WorkItem, Callable[[], Work]]] = field(default_factory=deque)
    trainers: FairQueue | None = None

    @property
    def is_empty(self) -> bool:
        """Whether none of its work waits for a thread."""
        return not self.items and not self.urgent and not self.trainers


class FairQueue:
    """The work that waits for a thread. Not safe from several threads."""

    def __init__(self) -> None:
        self._queues: dict[bytes | str, TrainerQueue] = {}
        # A heap with one entry for each queue that is not empty.
        self._next: list[tuple[float, int, TrainerQueue]] = []
        self._now = 0.0
        self._latest = 0.0
        self._count = 0
        self._running = 0
        self._entered = 0
        self._most = _REMEMBERED

    def __len__(self) -> int:
        return self._count

    def add(self, item: WorkItem, function: Callable[[], Work]) -> None:
        """Adds a work item."""
        if not item.group:
            trainer_queue = self._waiting(item.of)
            (trainer_queue.urgent if item.urgent else trainer_queue.items).append((item, function))
            item.trainer_queue = trainer_queue
            return
        item.group_queue = group_queue = self._waiting(item.group)
        if group_queue.trainers is None:
            group_queue.trainers = FairQueue()
        item.trainer_queue = trainer_queue = group_queue.trainers._waiting(item.of)
        (trainer_queue.urgent if item.urgent else trainer_queue.items).append((item, function))

    def _waiting(self, key: bytes | str) -> TrainerQueue:
        """The queue of a trainer or a group, which gets a further work item."""
        trainer_queue = self._queues.get(key)
        if trainer_queue is None:
            trainer_queue = self._queues[key] = TrainerQueue()
        if trainer_queue.is_empty:
            trainer_queue.used += trainer_queue.correction
            trainer_queue.correction = 0.0
            if trainer_queue.used < self._now:
                trainer_queue.used = self._now
            self._enter(trainer_queue)
        self._count += 1
        return trainer_queue

    def take(self) -> tuple[WorkItem, Callable[[], Work]]:
        """Removes and returns the next work item. The queue must not be empty."""
        used, _, trainer_queue = heappop(self._next)
        if used > self._now:
            self._now = used
        if trainer_queue.trainers:
            taken = trainer_queue.trainers.take()
        else:
            taken = (trainer_queue.urgent or trainer_queue.items).popleft()
        self._count -= 1
        self._running += 1
        trainer_queue.running += 1
        trainer_queue.used += trainer_queue.estimate + trainer_queue.correction
        trainer_queue.correction = 0.0
        if not trainer_queue.is_empty:
            self._enter(trainer_queue)
        return taken

    def ended(self, item: WorkItem, seconds: float) -> None:
        """Charges a finished work item's thread time, in seconds, to its trainer."""
        assert item.trainer_queue is not None
        if item.group_queue is None:
            self._charge(item.trainer_queue, seconds)
            return
        self._charge(item.group_queue, seconds)
        assert item.group_queue.trainers is not None
        item.group_queue.trainers._charge(item.trainer_queue, seconds)

    def _charge(self, trainer_queue: TrainerQueue, seconds: float) -> None:
        self._running -= 1
        trainer_queue.running -= 1
        estimate = trainer_queue.estimate
        trainer_queue.correction += seconds - estimate
        trainer_queue.estimate = 0.8 * estimate + 0.2 * seconds if estimate else seconds
        latest = trainer_queue.used + trainer_queue.correction
        if latest > self._latest:
            self._latest = latest
        if not self._count and not self._running and self._latest > self._now:
            # Nothing is queued or running: all trainers start equal again.
            self._now = self._latest
        if len(self._queues) > self._most:
            self._forget()

    def _enter(self, trainer_queue: TrainerQueue) -> None:
        # Among equals the number decides: first come, first served.
        self._entered += 1
        heappush(self._next, (trainer_queue.used, self._entered, trainer_queue))

    def _forget(self) -> None:
        """Removes idle queues whose trainer has used no more than the others."""
        for of, trainer_queue in list(self._queues.items()):
            idle = not trainer_queue.running and trainer_queue.is_empty
            if idle and trainer_queue.used + trainer_queue.correction <= self._now:
                del self._queues[of]
        self._most = 2 * len(self._queues) + _REMEMBERED
