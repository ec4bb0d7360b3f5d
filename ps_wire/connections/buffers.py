"""Buffers that are used again: memory fresh from the system costs five times what copying into it does."""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ps_wire.limits import MIB

if TYPE_CHECKING:
    from ps_wire.codec.payload import Buffer

SMALLEST: Final = MIB
"""Smaller ones are left to malloc, which keeps them by itself."""


_MOST_MALLOC_LEARNS: Final = 32 * MIB - 64 * 1024
"""A little less than the limit, because a block is larger than what was asked for."""


class BufferPool:
    """Lends buffers, and keeps them when the last array or tensor over them has died. All threads may use it.

    Args:
        max_bytes: How much memory it keeps that nobody uses.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._lock = threading.Lock()
        self._returned: deque[Buffer] = deque()
        self.kept = 0

    def take(self, nbytes: int) -> Buffer:
        """A writable buffer of so many bytes; what stands in it is of no meaning."""
        if nbytes < SMALLEST:
            return np.empty(nbytes, np.uint8)
        size = 1 << (nbytes - 1).bit_length()
        with self._lock:
            self._sort()
            free = self._free[size]
            buffer = free.pop() if free else None
            if buffer is not None:
                self.kept -= size
        self._take_in()
        if buffer is None:
            buffer = np.empty(size, np.uint8)
        return lent(buffer, nbytes, lambda: self._give_back(buffer))

    def clear(self) -> None:
        """Lets go of everything that nobody uses."""
        self._take_in()
        with self._lock:
            self._drop()

    def forked(self) -> None:
        """In a forked child: a thread that is not here may have held the lock."""
        self._lock = threading.Lock()

    def _give_back(self, buffer: Buffer) -> None:
        # The garbage collector calls this in the midst of anything, in a thread that may hold any lock: it never waits.
        if len(buffer) <= self._max_bytes:
            self._returned.append(buffer)
            self._take_in()

    def _take_in(self) -> None:
        """Takes in what was returned, unless another thread is about to, or this one further down its stack."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._sort()
            finally:
                self._lock.release()

    def _sort(self) -> None:
        """Puts what was returned where it is found by its size. The lock must be held."""
        while self._returned:
            buffer = self._returned.popleft()
            if self.kept + len(buffer) > self._max_bytes:
                # Sizes that are wanted now are worth more than those that once were.
                self._drop()
            self._free[len(buffer)].append(buffer)
            self.kept += len(buffer)

    def _drop(self) -> None:
        """Lets go of what is free. The lock must be held."""
        self._free.clear()
        self.kept = 0


def lent(buffer: Buffer, nbytes: int, ended: Callable[[], None]) -> Buffer:
    """The first bytes of a buffer, where they lie.

    Args:
        buffer: To be used again.
        nbytes: How many of its bytes.
        ended: Called when the last array, tensor or memoryview over them has died, in whatever thread that happens.
    """
    # An array of its own for every binding, so that its end can be noticed.
    holder = _Holder(np.frombuffer(buffer.data, np.uint8, nbytes))
    weakref.finalize(holder, ended).atexit = False
    return np.asarray(holder)


class _Holder:
    def __init__(self, view: Buffer) -> None:
        self._view = view
        self.__array_interface__ = view.__array_interface__


RECEIVED: Final = BufferPool(256 * MIB)
"""For payloads that arrive in parts, of all the connections of this process."""

os.register_at_fork(after_in_child=RECEIVED.forked)


@cache
def teach_malloc() -> None:
    """Lets glibc keep the memory of freed messages instead of returning it to the system after each one.

    From the first large block that is freed it learns the size up to which blocks come from memory that it keeps, and
    32 MiB is the most it can learn. Any program that has ever freed a tensor of that size is in this state; without it
    every part of a message would have its pages mapped and cleared anew.
    """
    block = np.empty(_MOST_MALLOC_LEARNS, np.uint8)
    del block
