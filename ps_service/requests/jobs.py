"""Jobs: the requests of a session that are being run."""

from __future__ import annotations

import asyncio
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ps_service.execution.fair_queue import Work, WorkItem
from ps_service.requests.dispatch import Later, abandoned, cancelled, cut_off, perform_queued, too_late
from ps_service.requests.handlers import OPERATIONS
from ps_service.requests.titles import title
from ps_wire.runtime.scopes import Scope

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext
    from ps_service.sessions.reply_cache import Answer


class Book(Protocol):
    """Who keeps book of jobs. Everything is called on the event loop, but for `is_full`.

    Attributes:
        made: Lengths of answers that threads have made, and the event loop has not seen yet. A list, because its
            `append` and `remove` are atomic.
    """

    made: list[int]

    @property
    def is_full(self) -> bool:
        """Whether no large answers shall be made now. May be asked in any thread."""

    def hold(self, job: Job) -> None:
        """It was not begun, because no answers shall be made; it has to be queued again."""

    def begin_wait(self, job: Job) -> None:
        """The code that runs for it has asked others for something."""

    def let_go(self, job: Job, waits: bool = False) -> None:
        """Its payload was let go; `waits` if it has no answer yet."""

    def finished(self, job: Job, result: Answer) -> None:
        """It has its answer."""


class Job:
    """One request in a compute thread; it has one answer, whatever happens first.

    Args:
        number: Of the request.
        ctx: What it reads from and writes to.
        operation: Name of the operation.
        request: Its message.
        timeout_seconds: How long its trainer will wait; 0 for as long as it takes.
        depth: How many requests it is nested in.
        book: Is told what becomes of it.

    Attributes:
        number: Of the request.
        operation: Name of the operation.
        request: Its message.
        nbytes: Length of its payload, for as long as that counts.
        waiting_bytes: The same, once it waits for others.
        begun: Whether a thread has taken it.
    """

    def __init__(
        self,
        number: int,
        ctx: RequestContext,
        operation: str,
        request: Any,
        timeout_seconds: float,
        depth: int,
        book: Book,
    ) -> None:
        self.nbytes = 0
        self.waiting_bytes = 0
        self.begun = False
        self.number = number
        self.operation = operation
        self.request = request
        self._ctx = ctx
        self._seconds = timeout_seconds
        # Weak, because the scope must not keep the job that has it, and its answer, until the collector comes.
        self._scope = Scope(timeout_seconds, depth, partial(_nests, weakref.ref(self)))
        self._book = book
        self._may_be_held = not depth and OPERATIONS[operation].large
        # What is nested goes first: code that runs elsewhere waits for it.
        what = partial(title, ctx.engine, operation, request)
        self._item = WorkItem(ctx.trainer, depth > 0, what, apart=OPERATIONS[operation].apart)
        self._answered = False
        self._due = False
        self._lock = threading.Lock()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Queues it for a thread."""
        if self._seconds:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        self.queue()

    def queue(self) -> None:
        """Queues it, perhaps again."""
        self._ctx.engine.compute.submit(self._run, self._item)

    def cancel(self) -> None:
        """Its trainer does not want it any more; it is not run if no thread had taken it yet."""
        self._give_up(cancelled(self.number))

    def cut_off(self) -> None:
        """Its owner stops, and whoever waits for it should know."""
        self._give_up(cut_off(self._ctx.engine, self.number))

    @property
    def is_due(self) -> bool:
        """Whether it has waited for others, and its result is there."""
        return self._due and not self._answered

    def drop(self, even_if_begun: bool) -> bool:
        """Its owner stops, and it is run another time, so that it has no answer now.

        Returns:
            Whether that is so: not if it has begun and that matters.
        """
        with self._lock:
            if self.begun and not even_if_begun:
                return False
            self._answered = True
        self._give_up(cut_off(self._ctx.engine, self.number))
        return True

    def _run(self) -> Work:
        with self._lock:
            if self._answered:
                return _nothing
            if self._may_be_held and self._book.is_full:
                return partial(self._book.hold, self)
            self.begun = True
        result = perform_queued(self._ctx, self.operation, self.request, self._item.of, self.number, self._scope)
        if isinstance(result, Later):
            self._ctx.let_go()
            result.when_done(lambda: self._come_back(result))
            return partial(self._book.let_go, self, True)
        self._book.made.append(result.nbytes)
        return partial(self._ran, result)

    def _ran(self, result: Answer) -> None:
        self._book.made.remove(result.nbytes)
        self._answer(result)
        self._book.let_go(self)

    def nests(self) -> None:
        """The code that runs for it asks others for something, in whatever thread."""
        if self.nbytes:
            self._ctx.engine.compute.tell(partial(self._book.begin_wait, self))

    def _come_back(self, later: Later) -> None:
        self._due = True
        item = WorkItem(self._ctx.trainer, urgent=True)
        self._ctx.engine.compute.submit(partial(self._complete, later), item)

    def _complete(self, later: Later) -> Work:
        return _nothing if self._answered else partial(self._answer, later.finish())

    def _expire(self) -> None:
        self._give_up(too_late(self.operation, self._seconds, self.number))

    def _give_up(self, error: Answer) -> None:
        self._scope.cancel()
        self._answer(abandoned(self._ctx, self.operation, error))
        # Last of all, because from now on it must not begin.
        self._ctx.engine.compute.abandon(self._item)

    def _answer(self, result: Answer) -> None:
        if self._answered:
            return
        self._answered = True
        if self._timer is not None:
            self._timer.cancel()
        self._book.finished(self, result)


def _nests(job: weakref.ref[Job]) -> None:
    nesting = job()
    if nesting is not None:
        nesting.nests()


def _nothing() -> None:
    """For work after which there is nothing to do, yet."""
