"""Calls functions on the event loop from other threads."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from ps_service.execution.fair_queue import Work

_log = logging.getLogger(__name__)


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
