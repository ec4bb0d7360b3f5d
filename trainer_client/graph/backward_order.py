"""The order of the backwards of one context: they run one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ps_wire.errors import CancelledCallError


class Queue:
    """Lets the backwards of a context run one after the other, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._last = 0
        # In order; of those that have begun, what is released when their turn comes.
        self._waiting: dict[int, threading.Lock | None] = {}

    def join(self) -> int:
        """Takes a number: one, two, three ..."""
        with self._lock:
            self._last += 1
            self._waiting[self._last] = None
            return self._last

    def begin(self) -> int | None:
        """Takes a number whose turn begins at once, until `leave`; None if others are before it."""
        with self._lock:
            if self._waiting:
                return None
            self._last += 1
            self._waiting[self._last] = threading.Lock()
            return self._last

    def withdraw(self, number: int) -> None:
        """Gives a number back, unless its turn was asked for."""
        with self._lock:
            if number in self._waiting and self._waiting[number] is None:
                self.leave(number)

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Waits for all lower numbers; the next one's turn comes at the end of the block.

        Raises:
            CancelledCallError: The number was given back.
        """
        with self._lock:
            if number not in self._waiting:
                raise CancelledCallError("the backward was cancelled before it began")
            mine = self._waiting[number] = threading.Lock()
            mine.acquire()
            if next(iter(self._waiting)) == number:
                mine.release()
        with mine:
            try:
                yield
            finally:
                self.leave(number)

    def leave(self, number: int) -> None:
        """Ends the turn of a number; the next one's begins."""
        with self._lock:
            was_first = next(iter(self._waiting)) == number
            del self._waiting[number]
            following = next(iter(self._waiting.values()), None)
            if was_first and following is not None:
                following.release()
