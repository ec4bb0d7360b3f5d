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


class Piece:
    """One piece of work that runs in a compute thread.

    Args:
        of: For whom it runs: pieces of different trainers take turns.
        urgent: Whether it goes before other pieces of the same trainer: something that has begun waits for it.
        what: Tells people what it is; called only when that is needed.
        apart: Whether it does not take turns at all: it has a thread of its own, in which nothing may take long.
        lasting: Whether it runs even if nobody waits for it any more when its turn comes.

    Attributes:
        abandoned: Whether nobody waits for it any more.
        queue: Where it stood.
    """

    __slots__ = ("abandoned", "apart", "lasting", "of", "queue", "urgent", "what")

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
        self.queue: Queue | None = None


class Queue:
    """What one trainer has asked for.

    Attributes:
        used: The thread time it has used, and is estimated to use by what runs, in seconds; a point on the time line
            that all trainers share.
        estimate: How long one of its pieces takes, on the average of late.
        correction: How far the estimates in `used` were wrong.
        running: How many of its pieces run.
    """

    __slots__ = ("correction", "estimate", "pieces", "running", "urgent", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self.estimate = 0.0
        self.correction = 0.0
        self.running = 0
        self.urgent: deque[tuple[Piece, Callable[[], Work]]] = deque()
        self.pieces: deque[tuple[Piece, Callable[[], Work]]] = deque()


class Turns:
    """Work that waits for a thread. Not safe from several threads."""

    def __init__(self) -> None:
        self._queues: dict[bytes, Queue] = {}
        # Each queue that is not empty stands here once.
        self._next: list[tuple[float, int, Queue]] = []
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

    def add(self, piece: Piece, function: Callable[[], Work]) -> None:
        """A piece of work waits."""
        queue = self._queues.get(piece.of)
        if queue is None:
            queue = self._queues[piece.of] = Queue()
        if not queue.pieces and not queue.urgent:
            queue.used += queue.correction
            queue.correction = 0.0
            if queue.used < self._now:
                queue.used = self._now
            self._enter(queue)
        (queue.urgent if piece.urgent else queue.pieces).append((piece, function))
        piece.queue = queue
        self._count += 1

    def take(self) -> tuple[Piece, Callable[[], Work]]:
        """The piece whose turn it is. There must be one."""
        used, _, queue = heappop(self._next)
        if used > self._now:
            self._now = used
        taken = (queue.urgent or queue.pieces).popleft()
        self._count -= 1
        self._running += 1
        queue.running += 1
        queue.used += queue.estimate + queue.correction
        queue.correction = 0.0
        if queue.pieces or queue.urgent:
            self._enter(queue)
        return taken

    def ended(self, piece: Piece, seconds: float) -> None:
        """A piece that was taken has come to its end, and has used so much thread time."""
        queue = piece.queue
        assert queue is not None
        self._running -= 1
        queue.running -= 1
        estimate = queue.estimate
        queue.correction += seconds - estimate
        queue.estimate = 0.8 * estimate + 0.2 * seconds if estimate else seconds
        latest = queue.used + queue.correction
        if latest > self._latest:
            self._latest = latest
        if not self._count and not self._running and self._latest > self._now:
            # Nobody is ahead of anybody where nobody had to wait.
            self._now = self._latest
        if len(self._queues) > self._most:
            self._forget()

    def _enter(self, queue: Queue) -> None:
        # The number decides between equals: who came first.
        self._entered += 1
        heappush(self._next, (queue.used, self._entered, queue))

    def _forget(self) -> None:
        """Forgets who asks for nothing and is not ahead of the others."""
        for of, queue in list(self._queues.items()):
            idle = not queue.running and not queue.pieces and not queue.urgent
            if idle and queue.used + queue.correction <= self._now:
                del self._queues[of]
        self._most = 2 * len(self._queues) + _REMEMBERED
