"""Threads for work that blocks, apart from the event loop's default executor.

That one has few threads, and they are the program's: work that waits for other work must never queue for the same
threads as the work it waits for.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Threads:
    """Runs functions in threads of its own, which are started when they are needed and used again.

    Args:
        name: What its threads are called.
        most: How many there may be; what comes after that waits for one.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """The result of a function that is called in a thread, in the caller's context variables."""
        call = partial(contextvars.copy_context().run, function, *args)
        return await asyncio.get_running_loop().run_in_executor(self._own(), call)

    def start(self, function: Callable[[], object]) -> None:
        """Has a function called in a thread, by and by; nobody waits for it."""
        self._own().submit(function)

    def _own(self) -> ThreadPoolExecutor:
        # The threads of a process do not live on in its forked children.
        if self._executor is None or self._process != os.getpid():
            self._executor = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
            self._process = os.getpid()
        return self._executor


BLOCKING: Final = Threads("ps-blocking", 4096)
"""For work that may wait for other work, such as a backward: each has a thread at once, however many there are."""

COPIES: Final = Threads("ps-copies", 4)
"""For large copies, which wait for nothing. More threads would not make memory faster."""
