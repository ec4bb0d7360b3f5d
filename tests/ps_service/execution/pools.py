"""A pool of compute threads whose results can be waited for, as an owner waits for the answers of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ps_service.execution.fair_queue import Work, WorkItem
from ps_service.execution.thread_pool import ThreadPool
from ps_wire.runtime.noop import noop

T = TypeVar("T")


class Pool(ThreadPool):
    """A thread pool that is used with `await`."""

    async def run(self, function: Callable[[], T], item: WorkItem | None = None) -> T:
        """The result of `run`."""
        return await run(self, function, item)


async def run(pool: ThreadPool, function: Callable[[], T], item: WorkItem | None = None) -> T:
    """Runs a function in one of the threads; returns its result.

    A caller that is cancelled stops waiting and abandons the work; if no thread has taken it yet, the function is not
    called.
    """
    item = item or WorkItem()
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def work() -> Work:
        if future.cancelled():
            return noop
        try:
            return partial(_give, future, function())
        except BaseException as error:
            return partial(_fail, future, error)

    pool.submit(work, item)
    try:
        return await future
    except asyncio.CancelledError:
        pool.abandon(item)
        raise


def _give(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
