"""Compute: the bounded pool of threads in which torch work runs, so that the event loop never does."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Compute:
    """Runs functions in threads.

    Args:
        threads: How many run at once; 0 chooses twice the number of cores, because a step that waits for a forward
            holds its thread.
    """

    def __init__(self, threads: int = 0) -> None:
        self.threads = threads or 2 * (os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="ps-compute")

    async def run(self, function: Callable[[], T]) -> T:
        """The result of a function that runs in one of the threads, in a copy of the caller's context variables.

        A caller that is cancelled stops waiting; the function is not started if no thread had taken it yet.
        """
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(context.run, function))

    def close(self) -> None:
        """Waits for running functions, and starts no other."""
        self._pool.shutdown(wait=True, cancel_futures=True)
