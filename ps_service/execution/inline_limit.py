"""Decides how long a request may take on the event loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from ps_wire.runtime import latency

if TYPE_CHECKING:
    from collections.abc import Callable

HAND_OVERS: Final = 100
"""Work that takes longer than this many hand-overs to a compute thread gains little by running on the event loop."""

MOST_SECONDS: Final = 5e-3
"""Most seconds that work may take on the event loop: health checks and new sessions wait meanwhile."""

QUIET_SECONDS: Final = 0.2
"""Seconds after a request of another trainer for which only short work runs on the event loop."""

LONG_SECONDS: Final = 1e-3
"""Other work may wait for work on the event loop that takes less than this."""

SOON_SECONDS: Final = 100e-6
"""A trainer that has waited for an answer cannot send its next request within this time."""

FIRST_PAUSE: Final = 0.02
LAST_PAUSE: Final = 2.56
"""Seconds for which only short work runs on the event loop because a trainer sends requests at once. They double each
time that it goes on to do so."""

_OFTEN: Final = 0.5
"""Share of the long work for which other work waits, from which on a trainer counts as one that sends at once."""


class InlineLimit:
    """How long a request may take on the event loop. Used on the event loop only.

    To run there saves a request the hand-over to a compute thread, but everything else waits meanwhile. Work of less
    than `INLINE_SECONDS` always may, and longer work, up to `HAND_OVERS` hand-overs and `MOST_SECONDS`, if

    - no other request is queued, or runs in a compute thread;
    - the work before was not too long for the event loop: a step after a long backward is faster in the thread that has
      just written the gradients, whose core has them in its caches;
    - all requests of the last `QUIET_SECONDS` came from one trainer;
    - this trainer waits for each answer before it sends more work. Once other work has waited for half of the latest
      work of more than `LONG_SECONDS`, only short work runs on the event loop for a while: compute threads run
      concurrently what a trainer sends at once.
    """

    def __init__(
        self,
        hand_over_seconds: Callable[[], float],
        is_busy: Callable[[], bool],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._hand_over_seconds = hand_over_seconds
        self._is_busy = is_busy
        self._clock = clock
        self.trainer = b""
        self._shared_until = 0.0
        # Whether the work before had to run in a thread in any case.
        self._was_long = False
        # Work that arrives before this time has waited for long work; infinity in the turn of the loop that ran it.
        self._waited_until = 0.0
        # The share of long work for which other work has waited, as a moving average.
        self._waited = 0.0
        self._pause = FIRST_PAUSE

    def arrived(self, trainer: bytes) -> None:
        """Notes that a request has arrived; called for each of them, at least if it is of another trainer."""
        if trainer != self.trainer:
            self.trainer = trainer
            self._shared_until = self._clock() + QUIET_SECONDS

    def admits(self, seconds: float) -> bool:
        """Whether work that is expected to take so long may run on the event loop now."""
        if seconds < latency.INLINE_SECONDS:
            return True
        now = self._clock()
        if now < self._waited_until:
            self._note_wait(now)
        most_seconds = min(HAND_OVERS * self._hand_over_seconds(), MOST_SECONDS)
        was_long, self._was_long = self._was_long, seconds >= most_seconds
        return not (self._was_long or was_long or now < self._shared_until or self._is_busy())

    def ran(self, seconds: float) -> None:
        """Notes that work which was expected to take so long has run on the event loop, and is not answered yet."""
        if seconds > LONG_SECONDS:
            self._waited *= 0.8
            if self._waited < 0.1:
                self._pause = FIRST_PAUSE
            self._waited_until = float("inf")
            asyncio.get_running_loop().call_soon(self._end_turn, self._clock() + SOON_SECONDS)

    def _end_turn(self, until: float) -> None:
        self._waited_until = until

    def _note_wait(self, now: float) -> None:
        self._waited_until = 0.0
        self._waited += 0.2
        if self._waited >= _OFTEN:
            # From here the next wait is enough.
            self._waited = 0.4
            self._shared_until = now + self._pause
            self._pause = min(2 * self._pause, LAST_PAUSE)
