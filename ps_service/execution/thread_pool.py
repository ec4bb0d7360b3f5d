"""The compute threads: a bounded pool in which torch work runs, so that it never blocks the event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ps_service.execution.cores import SharedCores, usable_cores
from ps_service.execution.fair_queue import FairQueue, Work, WorkItem
from ps_service.execution.workers import Worker, Workers
from ps_wire.runtime.noop import noop
from ps_wire.runtime.scopes import waiting

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger(__name__)

_MOST: Final = 1024
"""Most threads in total."""

REPORT_SECONDS: Final = 1.0
"""Seconds after which abandoned work that still runs is logged."""

_LEAST_SPARE: Final = 16
"""Least default number of spare threads, however few compute threads there are."""


class LoopCalls:
    """Calls functions on one event loop. Its methods may be called from any thread, except for `begin`.

    Nothing is called before `begin`, or when the loop is closed.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        # `append` and `popleft` of a deque are atomic.
        self._results: deque[Work] = deque()
        self._is_woken = False

    def begin(self) -> None:
        """Makes the running event loop the one on which functions are called."""
        self._loop = asyncio.get_running_loop()

    def tell(self, do: Callable[..., object], *args: Any) -> None:
        """Calls `do` soon."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(do, *args)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Calls `do` after some seconds."""
        if self._loop is not None:
            self.tell(self._loop.call_later, seconds, do)

    def unless_done(self, seconds: float, future: Future[Any], do: Callable[[], None]) -> None:
        """Calls `do` after some seconds, unless the future is done before. Then nothing keeps `do` any longer."""
        loop = self._loop
        if loop is None:
            return

        def begin() -> None:
            timer = loop.call_later(seconds, do)
            future.add_done_callback(lambda _: self.tell(timer.cancel))

        self.tell(begin)

    def deliver(self, result: Work) -> None:
        """Calls a function soon, after those that were delivered before. One wake-up of the loop serves several."""
        self._results.append(result)
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._call_all)

    def _call_all(self) -> None:
        # First, so that results which are delivered from now on wake the loop again.
        self._is_woken = False
        while self._results:
            try:
                self._results.popleft()()
            except Exception:
                # The other results must still be delivered.
                _log.exception("a result could not be delivered")


class ThreadPool(LoopCalls):
    """Runs functions in threads, and passes their results to the event loop.

    The standard library's executor costs five times as much: it makes a future with a condition, wraps it in an asyncio
    future, and wakes the loop for every result.

    Trainers share the `threads` that run at once fairly, see `FairQueue`; threads that wait or are lost are replaced,
    see `Workers`. The pool is `stalled` when lost ones hold all, with the `spare` ones. Administration has a thread of
    its own, so that it is answered even then.
    """

    def __init__(self, threads: int = 0, spare: int = 0) -> None:
        super().__init__()
        # Twice as many as cores, because a step that waits for a forward holds its thread.
        self.threads = threads or 2 * usable_cores()
        self.spare = spare or max(self.threads, _LEAST_SPARE)
        self.stalled = False
        # Called on the event loop when that changes.
        self.when_stalled: Callable[[bool], None] = noop
        # Is told for which account a thread has run something, if for one, and for how many seconds.
        self.when_ran: Callable[[Any, float], None] | None = None
        self.cores: SharedCores | None = None
        # A moving average of how long it takes to hand work to an idle thread, and its result to the event loop.
        self.hand_over_seconds = 0.0
        self._queue = FairQueue()
        # The threads without work; the last one has worked last.
        self._idle: list[Worker] = []
        self._apart: queue.SimpleQueue[Callable[[], Work] | None] = queue.SimpleQueue()
        self._apart_thread: threading.Thread | None = None
        self._workers = Workers(self.threads, self.spare)
        self._numbers = itertools.count()
        self._closed = False
        # Reentrant, because the garbage collector may run hosted code at any point.
        self._lock = threading.RLock()
        self._reported: set[str] = set()

    @property
    def queued(self) -> int:
        """Number of work items that wait for a thread."""
        return len(self._queue)

    @property
    def waiting(self) -> int:
        """Number of threads whose work waits for another process or for a lock."""
        return self._workers.waiting

    @property
    def lost(self) -> int:
        """Number of threads held by abandoned work."""
        with self._lock:
            return self._workers.lost.total()

    def has_lost_enough(self, of: bytes | str) -> bool:
        """Whether the abandoned work of one trainer or group holds half of the spare threads: it must not stall all."""
        return self._workers.lost[of] >= max(1, self.spare // 2)

    def submit(self, function: Callable[[], Work], item: WorkItem | None = None) -> None:
        """Runs a function in one of the threads, and then the callback that it returns on the calling event loop.

        The function must not raise. The item is for `abandon`, to give the work up.
        """
        if self._apart_thread is None:
            self._start()
        if item is not None and item.apart:
            self._apart.put(function)
            return
        with self._lock:
            self._queue.add(item or WorkItem(), function)
            if self._workers.missing > 0:
                self._grow()
            if self._idle:
                # Its memory is more likely to be in the caches of its core than that of the others.
                worker = self._idle.pop()
                worker.called = time.perf_counter()
                worker.woken.release()

    def abandon(self, item: WorkItem) -> None:
        """Marks work as abandoned; if a thread runs it, that thread counts as lost."""
        with self._lock:
            item.abandoned = True
            worker = self._workers.running(item)
            if worker is not None and not worker.lost:
                self._lose(worker)

    def reclaim(self, item: WorkItem) -> None:
        """Undoes `abandon`, because a caller waits for the work again."""
        with self._lock:
            item.abandoned = False
            worker = self._workers.running(item)
            if worker is not None and worker.lost:
                self._workers.regain(worker, item)
                self._look()

    def close(self, seconds: float | None = None) -> None:
        """Starts no more functions, and waits for running ones, for some seconds or without limit.

        Threads that still run afterwards are named in the log. They go on until their function or the process ends.
        """
        until = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            self._closed = True
            pool = list(self._workers.all)
            while self._idle:
                self._idle.pop().woken.release()
        self._apart.put(None)
        for worker in pool:
            _join(worker.thread, until)
        if self._apart_thread is not None:
            _join(self._apart_thread, until)
        left = [worker.item for worker in pool if worker.thread.is_alive() and worker.item is not None]
        if left:
            names = ", ".join(sorted({item.what() or "some work" for item in left}))
            _log.warning("the compute threads were closed, but %d of them still run %s", len(left), names)

    # Threads

    def _start(self) -> None:
        self.begin()
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
        while (taken := self._next(worker)) is not None:
            item, function = taken
            if self.cores is not None:
                self.cores.take(self._workers.computing)
            began = time.perf_counter()
            try:
                then = function()
            except BaseException as error:  # a fault of the owner, which must not cost it a thread
                _tell(error)
                then = noop
            seconds = time.perf_counter() - began
            if self.cores is not None:
                self.cores.note(seconds - worker.waited)
            is_last = self._ended(worker, item, seconds)
            if self.when_ran is not None:
                self.when_ran(item.account, seconds - worker.waited)
            # Last, because this wakes the event loop, which then competes for the GIL.
            self.deliver(then)
            if is_last:
                return
            # An idle thread must not keep the tensors of its last work item alive.
            del function, then, item, taken

    def _next(self, worker: Worker) -> tuple[WorkItem, Callable[[], Work]] | None:
        """Waits for the next work item of a worker, and returns it; None if the pool is closed."""
        while True:
            with self._lock:
                if self._closed:
                    return None
                if self._queue:
                    return self._take(worker)
                self._idle.append(worker)
                if self._queue:
                    # A finalizer has run in this thread meanwhile, and has submitted work.
                    if worker not in self._idle:
                        worker.woken.acquire()
                    else:
                        self._idle.remove(worker)
                    return self._take(worker)
            worker.woken.acquire()
            # The way back takes as long.
            seconds = 2 * (time.perf_counter() - worker.called)
            before = self.hand_over_seconds
            self.hand_over_seconds = 0.8 * before + 0.2 * seconds if before else seconds

    def _take(self, worker: Worker) -> tuple[WorkItem, Callable[[], Work]]:
        """Takes a work item for a worker from the queue, which is not empty. The lock must be held."""
        item, function = self._queue.take()
        worker.item, worker.waited = item, 0.0
        if item.abandoned and item.lasting:
            self._lose(worker)
        return item, function

    def _work_apart(self) -> None:
        while (function := self._apart.get()) is not None and not self._closed:
            try:
                self.deliver(function())
            except BaseException as error:
                _tell(error)
            del function

    def _ended(self, worker: Worker, item: WorkItem, seconds: float) -> bool:
        """Ends a worker's work item; returns whether the worker is surplus and was removed from the pool."""
        with self._lock:
            self._queue.ended(item, seconds - worker.waited)
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
        """Adds a thread if work is queued and fewer threads count than may run. The lock must be held."""
        if self._queue and self._workers.missing > 0 and len(self._workers.all) < _MOST and not self._closed:
            self._add_thread()

    # Abandoned work

    def _lose(self, worker: Worker) -> None:
        assert worker.item is not None
        self._workers.lose(worker)
        self._grow()
        self._look()
        self.later(REPORT_SECONDS, partial(self._report, worker, worker.item))

    def _look(self) -> None:
        """Logs and tells whether the pool is stalled, if that has changed. The lock must be held."""
        stalled = self._workers.is_stalled
        if stalled == self.stalled:
            return
        self.stalled = stalled
        if stalled:
            text = "stalled: all %d threads and %d spare ones are held by work that was given up"
            _log.error(text, self.threads, self.spare)
        else:
            _log.warning("no longer stalled: threads are free again")
        self.tell(lambda: self.when_stalled(self.stalled))

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
                self.spare,
            )


def _join(thread: threading.Thread, until: float | None) -> None:
    thread.join(None if until is None else max(0.0, until - time.monotonic()))


def _tell(error: BaseException) -> None:
    """Tells of an error as of one that ends its thread."""
    threading.excepthook(
        threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
    )
