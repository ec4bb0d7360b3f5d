"""Compute: the bounded pool of threads in which torch work runs, so that the event loop never does."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from ps_wire.scopes import waiting

_log = logging.getLogger("ps_service.compute")

T = TypeVar("T")

_MOST: Final = 1024
"""Threads there may be in all."""

Work = Callable[[], None]
"""Must not raise."""


class Compute:
    """Runs functions in threads, and tells the event loop when they are done.

    The standard library's executor does that too, at five times the price: a future with a condition on one side, one
    more on the other, and a wake-up of the loop for every result.

    A thread whose work waits for another process does not count: others take its place, so that calls which call
    each other cannot use up all threads.

    Args:
        threads: How many run at once; 0 chooses twice the number of cores, because a step that waits for a forward
            holds its thread.
    """

    def __init__(self, threads: int = 0) -> None:
        self.threads = threads or 2 * (os.cpu_count() or 1)
        self._waiting: queue.SimpleQueue[Callable[[], Work] | None] = queue.SimpleQueue()
        self._done: deque[Work] = deque()
        self._telling = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: list[threading.Thread] = []
        self._numbers = itertools.count()
        self._closed = False
        self._lock = threading.Lock()
        self._blocked = 0

    @property
    def queued(self) -> int:
        """How many functions wait for a thread."""
        return self._waiting.qsize()

    def submit(self, function: Callable[[], Work]) -> None:
        """Runs a function in one of the threads, and then, on the calling event loop, what it returned.

        Args:
            function: Must not raise, and says what is to be done on the loop afterwards.
        """
        if not self._pool:
            self._start()
        self._waiting.put(function)
        if self._blocked:
            self._grow()

    async def run(self, function: Callable[[], T]) -> T:
        """The result of a function that runs in one of the threads, in a copy of the caller's context variables.

        A caller that is cancelled stops waiting; the function is not started if no thread had taken it yet.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()

        def work() -> Work:
            if future.cancelled():
                return _nothing
            try:
                return partial(_give, future, context.run(function))
            except BaseException as error:
                return partial(_fail, future, error)

        self.submit(work)
        return await future

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Has something done on the event loop after some seconds. Called from one of the threads."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.call_later, seconds, do)

    def close(self) -> None:
        """Waits for running functions, and starts no other."""
        with self._lock:
            self._closed = True
            pool = list(self._pool)
        for _ in pool:
            self._waiting.put(None)
        for thread in pool:
            thread.join()

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        with self._lock:
            for _ in range(self.threads):
                self._add_thread()

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"ps-compute-{next(self._numbers)}", daemon=True)
        self._pool.append(thread)
        thread.start()

    def _work(self) -> None:
        waiting.begins, waiting.ends = self._begin_wait, self._end_wait
        while (function := self._waiting.get()) is not None and not self._closed:
            self._finished(function())
            # A thread that waits must not keep the tensors of what it ran.
            del function
            if self._is_superfluous():
                return

    def _begin_wait(self) -> None:
        with self._lock:
            self._blocked += 1
        if not self._waiting.empty():
            self._grow()

    def _end_wait(self) -> None:
        with self._lock:
            self._blocked -= 1

    def _grow(self) -> None:
        """Lets another thread work in the place of one that waits."""
        with self._lock:
            if len(self._pool) - self._blocked < self.threads and len(self._pool) < _MOST and not self._closed:
                self._add_thread()

    def _is_superfluous(self) -> bool:
        """Whether the thread that asks has become one too many; then it is in the pool no more."""
        with self._lock:
            if len(self._pool) - self._blocked <= self.threads or self._closed:
                return False
            self._pool.remove(threading.current_thread())
            return True

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


def _give(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _nothing() -> None:
    """For work that nobody waits for any more."""
