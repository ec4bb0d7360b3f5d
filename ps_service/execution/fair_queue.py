"""Turns: whose work a compute thread takes up next.

Each trainer has a queue of its own, and the trainer that has used the least thread time is next (start-time fair
queueing): a thousand long calls of one trainer make another's single call wait for those that run, and not for those
that are queued. Only who competes is compared: time during which a trainer asked for nothing is not saved up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

Work = Callable[[], None]
"""Must not raise."""

_REMEMBERED: Final = 32
"""Trainers that may have a queue before it is looked which of them need none any more."""


class WorkItem:
    """One piece of work that runs in a compute thread.

    Args:
        of: For whom it runs: pieces of different trainers take turns.
        urgent: Whether it goes before other pieces of the same trainer: something that has begun waits for it.
        what: Tells people what it is; called only when that is needed.
        apart: Whether it does not take turns at all: it has a thread of its own, in which nothing may take long.
        lasting: Whether it runs even if nobody waits for it any more when its turn comes.

    Attributes:
        abandoned: Whether nobody waits for it any more.
        trainer_queue: Where it stood.
    """

    __slots__ = ("abandoned", "apart", "lasting", "of", "trainer_queue", "urgent", "what")

    def __init__(
        self,
        of: bytes = b"",
        urgent: bool = False,
        what: Callable[[], str] = str,
        apart: bool = False,
        lasting: bool = False,
    ) -> None:
        self.of = of
        self.urgent = urgent
        self.what = what
        self.apart = apart
        self.lasting = lasting
        self.abandoned = False
        self.trainer_queue: TrainerQueue | None = None


class TrainerQueue:
    """What one trainer has asked for.

    Attributes:
        used: The thread time it has used, and is estimated to use by what runs, in seconds; a point on the time line
            that all trainers share.
        estimate: How long one of its pieces takes, on the average of late.
        correction: How far the estimates in `used` were wrong.
        running: How many of its pieces run.
    """

    __slots__ = ("correction", "estimate", "items", "running", "urgent", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self.estimate = 0.0
        self.correction = 0.0
        self.running = 0
        self.urgent: deque[tuple[WorkItem, Callable[[], Work]]] = deque()
        self.items: deque[tuple[WorkItem, Callable[[], Work]]] = deque()


class FairQueue:
    """Work that waits for a thread. Not safe from several threads."""

    def __init__(self) -> None:
        self._queues: dict[bytes, TrainerQueue] = {}
        # Each queue that is not empty stands here once.
        self._next: list[tuple[float, int, TrainerQueue]] = []
        self._now = 0.0
        self._latest = 0.0
        self._count = 0
        self._running = 0
        self._entered = 0
        self._most = _REMEMBERED

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, item: WorkItem, function: Callable[[], Work]) -> None:
        """A piece of work waits."""
        trainer_queue = self._queues.get(item.of)
        if trainer_queue is None:
            trainer_queue = self._queues[item.of] = TrainerQueue()
        if not trainer_queue.items and not trainer_queue.urgent:
            trainer_queue.used += trainer_queue.correction
            trainer_queue.correction = 0.0
            if trainer_queue.used < self._now:
                trainer_queue.used = self._now
            self._enter(trainer_queue)
        (trainer_queue.urgent if item.urgent else trainer_queue.items).append((item, function))
        item.trainer_queue = trainer_queue
        self._count += 1

    def take(self) -> tuple[WorkItem, Callable[[], Work]]:
        """The piece whose turn it is. There must be one."""
        used, _, trainer_queue = heappop(self._next)
        if used > self._now:
            self._now = used
        taken = (trainer_queue.urgent or trainer_queue.items).popleft()
        self._count -= 1
        self._running += 1
        trainer_queue.running += 1
        trainer_queue.used += trainer_queue.estimate + trainer_queue.correction
        trainer_queue.correction = 0.0
        if trainer_queue.items or trainer_queue.urgent:
            self._enter(trainer_queue)
        return taken

    def ended(self, item: WorkItem, seconds: float) -> None:
        """A piece that was taken has come to its end, and has used so much thread time."""
        trainer_queue = item.trainer_queue
        assert trainer_queue is not None
        self._running -= 1
        trainer_queue.running -= 1
        estimate = trainer_queue.estimate
        trainer_queue.correction += seconds - estimate
        trainer_queue.estimate = 0.8 * estimate + 0.2 * seconds if estimate else seconds
        latest = trainer_queue.used + trainer_queue.correction
        if latest > self._latest:
            self._latest = latest
        if not self._count and not self._running and self._latest > self._now:
            # Nobody is ahead of anybody where nobody had to wait.
            self._now = self._latest
        if len(self._queues) > self._most:
            self._forget()

    def _enter(self, trainer_queue: TrainerQueue) -> None:
        # The number decides between equals: who came first.
        self._entered += 1
        heappush(self._next, (trainer_queue.used, self._entered, trainer_queue))

    def _forget(self) -> None:
        """Forgets who asks for nothing and is not ahead of the others."""
        for of, trainer_queue in list(self._queues.items()):
            idle = not trainer_queue.running and not trainer_queue.items and not trainer_queue.urgent
            if idle and trainer_queue.used + trainer_queue.correction <= self._now:
                del self._queues[of]
        self._most = 2 * len(self._queues) + _REMEMBERED
