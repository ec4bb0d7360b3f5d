"""Compute: the bounded pool of threads in which torch work runs, so that the event loop never does."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from ps_service.execution.fair_queue import FairQueue, Work, WorkItem
from ps_service.execution.workers import Worker, Workers
from ps_wire.runtime.scopes import waiting

_log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST: Final = 1024
"""Threads there may be in all."""

_LEAST_SPARE: Final = 16
"""Spare threads there may be when nothing else was asked for, however few compute threads there are."""

REPORT_SECONDS: Final = 1.0
"""Work that goes on for so long although nobody waits for it is spoken of in the log."""


class ThreadPool:
    """Runs functions in threads, and tells the event loop when they are done.

    The standard library's executor does that too, at five times the price: a future with a condition on one side, one
    more on the other, and a wake-up of the loop for every result.

    Those for whom the functions run take turns, see `Turns`. A thread whose work waits, for another process or for a
    lock, does not count: others take its place, so that calls which call each other cannot use up all threads. Nor does
    a thread whose work nobody waits for any more, as far as there are spare ones. Administration has a thread apart, so
    that it is answered even when all others are held.

    Args:
        threads: How many run at once; 0 chooses twice the number of cores, because a step that waits for a forward
            holds its thread.
        spare: How many may take the place of threads that are held by work for which nobody waits any more; 0 chooses
            as many as there are threads, but at least sixteen.

    Attributes:
        threads: How many run at once.
        spare: How many may take the place of others.
        when_stalled: Called on the event loop with whether the owner is stalled, when that changes.
    """

    def __init__(self, threads: int = 0, spare: int = 0) -> None:
        self.threads = threads or 2 * (os.cpu_count() or 1)
        self.spare = spare or max(self.threads, _LEAST_SPARE)
        self.when_stalled: Callable[[bool], None] = _ignore
        self._turns = FairQueue()
        # One token for every piece in `_turns`, and one for every thread when all is over.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._apart: queue.SimpleQueue[Callable[[], Work] | None] = queue.SimpleQueue()
        self._apart_thread: threading.Thread | None = None
        self._done: deque[Work] = deque()
        self._telling = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers = Workers(self.threads, self.spare)
        self._numbers = itertools.count()
        self._closed = False
        # Reentrant: the garbage collector may run hosted code in the midst of anything.
        self._lock = threading.RLock()
        self._stalled = False
        self._reported: set[str] = set()

    @property
    def queued(self) -> int:
        """How many functions wait for a thread."""
        return len(self._turns)

    @property
    def waiting(self) -> int:
        """How many threads are held by work that waits for another process or for a lock."""
        return self._workers.waiting

    @property
    def lost(self) -> int:
        """How many threads are held by work for which nobody waits any more."""
        with self._lock:
            return self._workers.lost.total()

    @property
    def stalled(self) -> bool:
        """Whether no thread is left: all of them, and the spare ones, are held by work for which nobody waits."""
        return self._stalled

    def has_lost_enough(self, of: bytes) -> bool:
        """Whether a trainer holds half of the spare threads: it alone must not bring the owner to a stop."""
        return self._workers.lost[of] >= max(1, self.spare // 2)

    def submit(self, function: Callable[[], Work], item: WorkItem | None = None) -> None:
        """Runs a function in one of the threads, and then, on the calling event loop, what it returned.

        Args:
            function: Must not raise, and says what is to be done on the loop afterwards.
            item: What is known of it; by it the function can be abandoned.
        """
        if self._apart_thread is None:
            self._start()
        if item is not None and item.apart:
            self._apart.put(function)
            return
        with self._lock:
            self._turns.add(item or WorkItem(), function)
            if self._workers.missing > 0:
                self._grow()
        self._tokens.put(None)

    async def run(self, function: Callable[[], T], item: WorkItem | None = None) -> T:
        """The result of a function that runs in one of the threads, in a copy of the caller's context variables.

        A caller that is cancelled stops waiting, and abandons the piece; the function is not started if no thread had
        taken it yet.
        """
        item = item or WorkItem()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()

        def work() -> Work:
            if future.cancelled():
                return _nothing
            try:
                return partial(_give, future, context.run(function))
            except BaseException as error:
                return partial(_fail, future, error)

        self.submit(work, item)
        try:
            return await future
        except asyncio.CancelledError:
            self.abandon(item)
            raise

    def abandon(self, item: WorkItem) -> None:
        """Nobody waits any more for a piece: if a thread runs it, that one is lost."""
        with self._lock:
            item.abandoned = True
            worker = self._workers.running(item)
            if worker is not None and not worker.lost:
                self._lose(worker)

    def reclaim(self, item: WorkItem) -> None:
        """Somebody waits for a piece again."""
        with self._lock:
            item.abandoned = False
            worker = self._workers.running(item)
            if worker is not None and worker.lost:
                self._workers.regain(worker, item)
                self._look()

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Has something done on the event loop after some seconds. May be called from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.call_later, seconds, do)

    def tell(self, do: Callable[[], None]) -> None:
        """Has something done on the event loop soon. May be called from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(do)

    def close(self, seconds: float | None = None) -> None:
        """Waits for running functions, and starts no other.

        Args:
            seconds: How long they are waited for; None for as long as it takes. Threads that still run then are named
                in the log. They go on until their function ends, or until the process does.
        """
        until = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            self._closed = True
            pool = list(self._workers.all)
        for _ in pool:
            self._tokens.put(None)
        self._apart.put(None)
        for worker in pool:
            _join(worker.thread, until)
        if self._apart_thread is not None:
            _join(self._apart_thread, until)
        self._report_left([worker for worker in pool if worker.thread.is_alive()])

    def _report_left(self, left: list[Worker]) -> None:
        items = [item for item in (worker.item for worker in left) if item is not None]
        if items:
            names = ", ".join(sorted({item.what() or "some work" for item in items}))
            _log.warning("the compute threads were closed, but %d of them still run %s", len(items), names)

    # Threads

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        with self._lock:
            for _ in range(self.threads):
                self._add_thread()
            self._apart_thread = threading.Thread(target=self._work_apart, name="ps-compute-apart", daemon=True)
            self._apart_thread.start()

    def _add_thread(self) -> None:
        worker = Worker()
        name = f"ps-compute-{next(self._numbers)}"
        worker.thread = threading.Thread(target=self._work, args=(worker,), name=name, daemon=True)
        self._workers.add(worker)
        worker.thread.start()

    def _work(self, worker: Worker) -> None:
        waiting.begins = partial(self._begin_wait, worker)
        waiting.ends = partial(self._end_wait, worker)
        while True:
            self._tokens.get()
            with self._lock:
                if self._closed:
                    return
                item, function = self._turns.take()
                worker.item, worker.waited = item, 0.0
                if item.abandoned and item.lasting:
                    self._lose(worker)
            began = time.perf_counter()
            then = function()
            is_last = self._ended(worker, item, time.perf_counter() - began)
            # Last, because this wakes the event loop, which wants the interpreter for itself.
            self._finished(then)
            if is_last:
                return
            # A thread that waits must not keep the tensors of what it ran.
            del function, then, item

    def _work_apart(self) -> None:
        while (function := self._apart.get()) is not None and not self._closed:
            self._finished(function())
            del function

    def _ended(self, worker: Worker, item: WorkItem, seconds: float) -> bool:
        """A worker has run a piece; says whether there is one too many, who is in the pool no more."""
        with self._lock:
            self._turns.ended(item, seconds - worker.waited)
            worker.item = None
            if worker.lost:
                self._workers.regain(worker, item)
                self._look()
            if self._workers.missing >= 0 or self._closed:
                return False
            self._workers.remove(worker)
            return True

    def _begin_wait(self, worker: Worker) -> None:
        with self._lock:
            self._workers.begin_wait(worker)
            self._grow()

    def _end_wait(self, worker: Worker) -> None:
        with self._lock:
            self._workers.end_wait(worker)

    def _grow(self) -> None:
        """Lets another thread work in the place of one that does not count, if there is work. The lock must be held."""
        if self._turns and self._workers.missing > 0 and len(self._workers.all) < _MOST and not self._closed:
            self._add_thread()

    # Work that nobody waits for

    def _lose(self, worker: Worker) -> None:
        assert worker.item is not None
        self._workers.lose(worker)
        self._grow()
        self._look()
        self.later(REPORT_SECONDS, partial(self._report, worker, worker.item))

    def _report(self, worker: Worker, item: WorkItem) -> None:
        """Says of each function that holds threads for nothing that it does, once."""
        with self._lock:
            if not worker.lost or worker.item is not item:
                return
            name, lost = item.what(), self._workers.lost.total()
            lasting = {each.item.what() for each in self._workers.all if each.item is not None and each.lost}
            known = name in self._reported
            # What has come to its end is spoken of again when it does not the next time.
            self._reported = (self._reported | {name}) & lasting
        if not known:
            _log.warning(
                "%s goes on although nobody waits for it any more; %d threads are held so, and at most %d others "
                "take their place",
                name or "some work",
                lost,
                self.spare,
            )

    def _look(self) -> None:
        """Tells when there is no thread left for work that somebody waits for, and when there is one again."""
        stalled = self._workers.is_stalled
        if stalled == self._stalled:
            return
        self._stalled = stalled
        if stalled:
            text = "all %d threads, and %d spare ones, are held by work that nobody waits for any more"
            _log.error(text, self.threads, self.spare)
        else:
            _log.warning("there are threads again for work that somebody waits for")
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(lambda: self.when_stalled(self._stalled))

    # Results

    def _finished(self, then: Work) -> None:
        # One wake-up of the loop serves all that finish before it comes.
        self._done.append(then)
        if not self._telling and self._loop is not None:
            self._telling = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        # First of all, so that whoever finishes from now on wakes the loop again.
        self._telling = False
        while self._done:
            try:
                self._done.popleft()()
            except Exception:
                # The others must hear of theirs.
                _log.exception("a result could not be handed over")


def _join(thread: threading.Thread, until: float | None) -> None:
    thread.join(None if until is None else max(0.0, until - time.monotonic()))


def _give(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _nothing() -> None:
    """For work that nobody waits for any more."""


def _ignore(stalled: bool) -> None:
    """For pools of which nobody wants to know."""
