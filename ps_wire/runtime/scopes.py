"""Scopes: the deadline, depth and seeds of a running request, for the requests that are nested in it. The client that
hosted code uses finds them there: a nested request never waits longer than the outer one, and is cancelled with it."""

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
"""The result of `Scope.within` after the deadline."""


class Cancellable(Protocol):
    """A request that can be cancelled."""

    def cancel(self) -> None:
        """Cancels it."""


class Scope:
    """The scope of one running request, which is nested in `depth` others, and whose caller waits for some seconds (0:
    without limit). `nesting` is called before the first nested request, in the thread that makes it. `seeds` are those
    of nested requests, if it has a seed itself."""

    def __init__(self, seconds: float = 0.0, depth: int = 0, nesting: Callable[[], None] | None = None) -> None:
        self.depth = depth
        self.seeds: Seeds | None = None
        self._deadline = time.monotonic() + seconds if seconds else None
        self._lock = threading.Lock()
        self._nested: WeakSet[Cancellable] = WeakSet()
        self._cancelled = False
        self._nesting = nesting

    @property
    def has_nested(self) -> bool:
        """Whether a nested request was made."""
        return self._nesting is None

    def within(self, seconds: float | None) -> float | None:
        """The smaller of `seconds` and the time that the request has left; None is no limit."""
        if self._deadline is None:
            return seconds
        left = max(self._deadline - time.monotonic(), LEAST_SECONDS_LEFT)
        return left if seconds is None else min(seconds, left)

    def add(self, nested: Cancellable) -> None:
        """Adds a nested request, which is cancelled with this one. Only a weak reference to it is kept."""
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
        """Cancels the nested requests, because the caller waits no longer."""
        with self._lock:
            self._cancelled = True
            nested = list(self._nested)
        for each in nested:
            each.cancel()


current_scope: Final[ContextVar[Scope | None]] = ContextVar("ps_wire_scope", default=None)
"""The scope of the request that this code runs for."""


class Pausable(Protocol):
    """Something that a thread has for itself, and gives to others while it waits."""

    def pause(self) -> None:
        """Gives it to others."""

    def resume(self) -> None:
        """Takes it back."""


class Waiting(threading.local):
    """Reports that this thread waits for another process or for a lock. The pool of the thread sets what is called
    before and after a wait. What the thread has for itself (`held`), it gives to others meanwhile, the last one first.
    """

    begins: Callable[[], None] | None = None
    ends: Callable[[], None] | None = None
    held: tuple[Pausable, ...] = ()

    def __enter__(self) -> None:
        if self.begins is not None:
            self.begins()
        if self.held:
            for each in reversed(self.held):
                each.pause()

    def __exit__(self, *_: object) -> None:
        if self.ends is not None:
            self.ends()
        if self.held:
            # Taking it back may be a wait, too.
            held, self.held = self.held, ()
            try:
                for each in held:
                    each.resume()
            finally:
                self.held = held


waiting: Final = Waiting()
"""Enter it around every wait, `with waiting: ...`, so that the pool of the thread can replace it."""
