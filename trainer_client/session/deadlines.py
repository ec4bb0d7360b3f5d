"""Ends requests of a session at their deadlines, with one timer for all of them."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from trainer_client.session.in_flight import InFlightRequest

_EARLY_SECONDS: Final = 0.001
"""The most that a timer of an event loop may fire too early, in seconds."""


class Deadlines:
    """Ends requests at their deadlines.

    Args:
        loop: The session's event loop.
        requests: Returns the requests that have no answer yet.
        expire: Ends a request.

    Attributes:
        next: Time at which the timer fires, in seconds of the monotonic clock; infinity while there is no timer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Callable[[], Iterable[InFlightRequest[Any]]],
        expire: Callable[[InFlightRequest[Any]], None],
    ) -> None:
        self._loop = loop
        self._requests = requests
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self.next = math.inf

    def set(self, deadline: float) -> None:
        """Sets the timer to a deadline that is earlier than `next`."""
        self.stop()
        self.next = deadline
        self._timer = self._loop.call_later(max(deadline - time.monotonic(), 0.0), self._ring)

    def stop(self) -> None:
        """Cancels the timer, which would keep the session alive until it fires."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.next = math.inf

    def _ring(self) -> None:
        self.stop()
        now = time.monotonic() + _EARLY_SECONDS
        waiting = sorted((each for each in self._requests() if not each.settled), key=lambda each: each.deadline)
        for each in waiting:
            if each.deadline > now:
                if each.deadline < self.next:
                    self.set(each.deadline)
                return
            self._expire(each)
