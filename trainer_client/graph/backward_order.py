"""A queue that lets the backwards of one context run one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ps_wire.errors import CancelledCallError


class Queue:
    """Lets the backwards of a context run one after the other, in the order of their numbers. Safe from threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._last = 0
        # In order. A thread that waits for its turn waits for the lock of its number.
        self._waiting: dict[int, threading.Lock | None] = {}

    def join(self) -> int:
        """Takes the next number: 1, 2, 3 …"""
        with self._lock:
            self._last += 1
            self._waiting[self._last] = None
            return self._last

    def begin(self) -> int | None:
        """Takes the next number if its turn is now, until `leave`; otherwise returns None."""
        with self._lock:
            if self._waiting:
                return None
            self._last += 1
            self._waiting[self._last] = threading.Lock()
            return self._last

    def withdraw(self, number: int) -> None:
        """Removes a number from the queue, unless a thread waits for its turn already."""
        with self._lock:
            if number in self._waiting and self._waiting[number] is None:
                self.leave(number)

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Waits for all lower numbers, until the block ends; `CancelledCallError` if the number was withdrawn."""
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
        """Ends the turn of a number and begins the next one."""
        with self._lock:
            was_first = next(iter(self._waiting)) == number
            del self._waiting[number]
            following = next(iter(self._waiting.values()), None)
            if was_first and following is not None:
                following.release()
