"""Handles events one after the other, in compute threads, so that no caller waits for them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from ps_wire.runtime.noop import noop

if TYPE_CHECKING:
    from ps_service.execution.fair_queue import Work

_log = logging.getLogger(__name__)

DRAINING: Final = (
    "the owner is about to stop, so no step waits for other trainers: nothing was applied. Run the pass again; if the "
    "owner goes on from a checkpoint, requests wait for its next start"
)
"""What a trainer is told whose step an owner does not let wait any more."""


class EventQueue:
    """Events, which one thread at a time handles in their order. Safe from several threads. A future among them is done
    when those before it are handled. `submit` runs a function in a compute thread, and on the event loop what it
    returns."""

    def __init__(self, handle: Callable[[Any], None]) -> None:
        self.submit: Callable[[Callable[[], Work]], None] = _run_here
        self._handle = handle
        self._lock = threading.Lock()
        self._events: deque[Any] = deque()
        self._draining = False

    def extend(self, events: Iterable[Any]) -> None:
        """Adds events. `go_on` has to follow, outside of all locks."""
        with self._lock:
            self._events.extend(events)

    def go_on(self) -> None:
        """Has the events handled."""
        with self._lock:
            if self._draining or not self._events:
                return
            self._draining = True
        self.submit(self._drain)

    def _drain(self) -> Work:
        while True:
            with self._lock:
                if not self._events:
                    self._draining = False
                    return noop
                event = self._events.popleft()
            if isinstance(event, Future):
                event.set_result(None)
                continue
            try:
                self._handle(event)
            except Exception:
                # Those behind it are waited for, too.
                _log.exception("an event of the rounds of an optimizer could not be handled")


def _run_here(function: Callable[[], Work]) -> None:
    function()()
