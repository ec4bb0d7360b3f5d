"""Threads for work that blocks. The event loop's default executor has few, which belong to the program, and work that
waits for other work must never queue for the same threads as that."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Threads:
    """Runs functions in threads of its own, which are started as needed and reused; beyond `most`, functions wait."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function in a thread, with the caller's context variables, and returns its result."""
        call = partial(contextvars.copy_context().run, function, *args)
        return await asyncio.get_running_loop().run_in_executor(self._own(), call)

    def start(self, function: Callable[[], object]) -> None:
        """Calls a function in a thread, without waiting for it."""
        self._own().submit(function)

    def _own(self) -> ThreadPoolExecutor:
        # A forked child has none of its parent's threads.
        if self._executor is None or self._process != os.getpid():
            self._executor = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
            self._process = os.getpid()
        return self._executor


def read_on_loop(loop: asyncio.AbstractEventLoop, read: Callable[[], T], seconds: float) -> T:
    """What a function returns that reads what only the thread of an event loop changes. Called in another thread.

    Raises `TimeoutError` if the loop does not come to it in so many seconds, or is closed.
    """
    found: Future[T] = Future()

    def run() -> None:
        if not found.set_running_or_notify_cancel():
            return
        try:
            found.set_result(read())
        except BaseException as error:
            found.set_exception(error)

    try:
        loop.call_soon_threadsafe(run)
    except RuntimeError:
        raise TimeoutError("the event loop is closed") from None
    try:
        return found.result(seconds)
    except TimeoutError:
        found.cancel()
        raise


BLOCKING: Final = Threads("ps-blocking", 4096)
"""For work that may wait for other work, such as a backward: each gets a thread at once."""

COPIES: Final = Threads("ps-copies", 4)
"""For large copies, which never wait. More threads would not make copies faster."""
