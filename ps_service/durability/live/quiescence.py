"""Short times in which no optimizer steps and nothing is appended to the log."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from ps_service.training.no_steps import StillBusy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ps_service.durability.log.owners_log import OwnersLog
    from ps_service.training.optimizers import HostedOptimizer

PATIENCE_SECONDS: Final = 10.0
"""Seconds to wait for a step that is being made, or for hosted code."""

_SHORT_SECONDS: Final = 0.01
"""Seconds to wait for the lock of an optimizer while other requests wait."""


class Quiescence:
    """The turn of the owner's log and the locks of some optimizers: what the log has up to its end is what their
    parameters have. `longest` is the longest of these times, in seconds. `code` is that of the last record before the
    latest of them."""

    def __init__(self, log: OwnersLog) -> None:
        self._log = log
        self.longest = 0.0
        self.code = b""

    @contextmanager
    def held(self, optimizers: Iterable[HostedOptimizer]) -> Iterator[int]:
        """Has all that changes something wait while a block runs; gives it the end of the log. Raises `StillBusy` if a
        step takes too long."""
        # In the order of steps over several.
        ordered = sorted(set(optimizers), key=lambda each: each.number)
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            with ExitStack() as stack:
                if not self._log.turn.acquire(seconds=_left(until)):
                    raise StillBusy("a request that changes something takes too long")
                stack.callback(self._log.turn.release)
                self._log.settle()  # what is there must not come behind it
                began = time.perf_counter()
                busy = next((each for each in ordered if not _taken(stack, each)), None)
                if busy is None:
                    try:
                        end, self.code = self._log.log.place()
                        yield end
                    finally:
                        stack.close()
                        self.longest = max(self.longest, time.perf_counter() - began)
                    return
            # The arithmetic of a step follows its answer; others need not wait for it.
            if not busy.lock.acquire(seconds=_left(until)):
                raise StillBusy(f"a step of {busy.title} takes longer than {PATIENCE_SECONDS:g} s")
            busy.lock.release()


def _taken(stack: ExitStack, optimizer: HostedOptimizer) -> bool:
    if not optimizer.lock.acquire(seconds=_SHORT_SECONDS):
        return False
    stack.callback(optimizer.lock.release)
    return True


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.0)
