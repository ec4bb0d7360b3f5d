"""Whether an owner may still act for its name: one that did not run for a while may have been replaced meanwhile, and
so may one that cannot reach the keepers of its directory."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS: Final = 3.0
"""Seconds without a beat after which an owner cannot know whether it was replaced."""

BEAT_SECONDS: Final = 0.5
"""Seconds between two beats."""


DOUBT: Final = "owner {!r} did not run for a while, and asks whether another has taken its place meanwhile; ask again"
"""The error of what comes before that is known."""

NO_LEASE: Final = (
    "owner {!r} does not reach a majority of the keepers of its directory, so another may have its name; ask again"
)
"""The error of what comes while an owner has no lease on its name."""

_clock: Final = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Goes on while the machine is suspended."""


class Fence:
    """Whether an owner may take requests and answer them, used on its event loop.

    Only an owner that a later start of its state can replace is `watched`: it has a data directory, and is in the
    directory of another. When its loop has not run for a while, as after SIGSTOP, what has arrived meanwhile is read
    first. So requests and answers look at the clock, and the first that finds that no `beat` came in time calls
    `when_doubted`. Until `settle`, nothing is taken and nothing is answered; trainers send it again.

    One whose directory has several keepers is watched, too. It acts as long as its `lease` on its name says, which is
    extended again and again.
    """

    def __init__(self, clock: Callable[[], float] = _clock) -> None:
        self.watched = self.is_doubted = False
        self.doubt = DOUBT
        self.clock: Final = clock
        self._until = math.inf
        self._when_doubted: Callable[[], object] | None = None

    def watch(self, when_doubted: Callable[[], object]) -> None:
        """Is looked at from now on."""
        self.watched, self._when_doubted = True, when_doubted
        self.settle()

    def lease(self, when_doubted: Callable[[], object]) -> None:
        """Needs a lease from now on, and has none yet."""
        self.watched = self.is_doubted = True
        self.doubt, self._until, self._when_doubted = NO_LEASE, -math.inf, when_doubted

    def extend(self, until: float) -> None:
        """The lease lasts until this time at least."""
        if until >= self.clock():
            self.is_doubted, self._until = False, max(until, self._until)

    def beat(self) -> None:
        """The owner runs, and would have heard of a later start."""
        if self.is_sure():
            self._until = self.clock() + PATIENCE_SECONDS

    def is_sure(self) -> bool:
        """Whether the owner has run all the time."""
        if self.clock() <= self._until:
            return True
        if not self.is_doubted and self._when_doubted is not None:
            self.is_doubted, self._until = True, -math.inf
            self._when_doubted()
        return False

    def settle(self) -> None:
        """No later start has taken the place."""
        self.is_doubted, self._until = False, self.clock() + PATIENCE_SECONDS
