"""Scopes: what a running request passes on to the requests that it makes in turn.

An owner runs hosted code inside a scope; a client that hosted code uses finds it there. So a nested request never waits
longer than the request it is made for, and ends when that one is given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from ps_wire.numerics.seeds import Seeds


LEAST_SECONDS_LEFT: Final = 0.001
"""What `Scope.within` returns once the deadline has passed."""


class Cancellable(Protocol):
    """What can be given up."""

    def cancel(self) -> None:
        """Gives it up."""


class Scope:
    """One request while it runs.

    Args:
        seconds: How long its caller will wait; 0 for as long as it takes.
        depth: How many requests it is nested in.
        nesting: Called in the thread that makes the first request for it.

    Attributes:
        depth: How many requests it is nested in.
        seeds: For the requests that are made for it, if it is seeded itself.
    """

    def __init__(self, seconds: float = 0.0, depth: int = 0, nesting: Callable[[], None] | None = None) -> None:
        self.depth = depth
        self.seeds: Seeds | None = None
        self._deadline = time.monotonic() + seconds if seconds else None
        self._lock = threading.Lock()
        self._nested: WeakSet[Cancellable] = WeakSet()
        self._cancelled = False
        self._nesting = nesting

    def within(self, seconds: float | None) -> float | None:
        """The same number of seconds, or fewer if the request itself has no more left; None is without end."""
        if self._deadline is None:
            return seconds
        left = max(self._deadline - time.monotonic(), LEAST_SECONDS_LEFT)
        return left if seconds is None else min(seconds, left)

    def add(self, nested: Cancellable) -> None:
        """A request that is given up with this one. Kept only while somebody else keeps it."""
        with self._lock:
            nesting, self._nesting = self._nesting, None
            cancelled = self._cancelled
            if not cancelled:
                self._nested.add(nested)
        if nesting is not None:
            nesting()
        if cancelled:
            nested.cancel()

    def cancel(self) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._cancelled = True
            nested = list(self._nested)
        for each in nested:
            each.cancel()


current_scope: Final[ContextVar[Scope | None]] = ContextVar("ps_wire_scope", default=None)
"""The scope of the request for which this code runs."""


class Waiting(threading.local):
    """Tells whoever lent this thread that it is about to wait, for another process or for a lock.

    Attributes:
        begins: Called before a wait.
        ends: Called after it.
    """

    begins: Callable[[], None] | None = None
    ends: Callable[[], None] | None = None

    def __enter__(self) -> None:
        if self.begins is not None:
            self.begins()

    def __exit__(self, *_: object) -> None:
        if self.ends is not None:
            self.ends()


waiting: Final = Waiting()
"""Enter it around every wait, `with waiting: ...`, so that a pool of threads can grow meanwhile."""
