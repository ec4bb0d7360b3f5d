"""The memory of messages: a pool of buffers, and what malloc keeps.

Fresh memory from the system costs five times as much as copying into it, so it is kept under load. When no large
message has been sent or received for a while, it is given back: an idle process must not keep the gigabytes of its last
burst.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ps_wire.limits import IDLE_SECONDS, MIB
from ps_wire.runtime.threads import COPIES

if TYPE_CHECKING:
    from ps_wire.codec.payload import Buffer

SMALLEST: Final = MIB
"""Smallest pooled buffer. Smaller ones come from malloc, which reuses them by itself."""

LARGE_BYTES: Final = 32 * 1024
"""Smallest message that counts as use."""

_MALLOC_OPTIONS: Final = {-3: 32 * MIB, -2: 64 * MIB, -1: 64 * MIB}
"""Options of glibc's `mallopt`: M_MMAP_THRESHOLD (32 MiB is the most it takes), M_TOP_PAD and M_TRIM_THRESHOLD."""


class BufferPool:
    """Lends buffers, and keeps at most `max_bytes` of them for reuse when the last array or tensor over them is freed.

    Safe from all threads.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._lock = threading.Lock()
        self._returned: deque[Buffer] = deque()
        self.kept = 0

    def take(self, nbytes: int) -> Buffer:
        """A writable buffer of `nbytes`, with undefined contents."""
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
        """Frees all unused buffers."""
        self._take_in()
        with self._lock:
            self._drop()

    def forked(self) -> None:
        """In a forked child: makes a new lock, because a thread of the parent may have held the old one."""
        self._lock = threading.Lock()

    def _give_back(self, buffer: Buffer) -> None:
        # The garbage collector may call this at any point, in a thread that holds any lock, so it never waits.
        if len(buffer) <= self._max_bytes:
            self._returned.append(buffer)
            self._take_in()

    def _take_in(self) -> None:
        """Adds returned buffers to the pool, unless another thread or a caller of this function is about to do so."""
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._sort()
            finally:
                self._lock.release()

    def _sort(self) -> None:
        """Sorts returned buffers by size. The lock must be held."""
        while self._returned:
            buffer = self._returned.popleft()
            if self.kept + len(buffer) > self._max_bytes:
                # Sizes that are in use now are more useful than earlier ones.
                self._drop()
            self._free[len(buffer)].append(buffer)
            self.kept += len(buffer)

    def _drop(self) -> None:
        """Frees the unused buffers. The lock must be held."""
        self._free.clear()
        self.kept = 0


def lent(buffer: Buffer, nbytes: int, ended: Callable[[], None]) -> Buffer:
    """The first bytes of a buffer, without a copy.

    `ended` is called when the last array, tensor or memoryview over them is freed, in any thread.
    """
    # A new array for every loan, whose finalizer tells that the loan has ended.
    holder = _Holder(np.frombuffer(buffer.data, np.uint8, nbytes))
    weakref.finalize(holder, ended).atexit = False
    return np.asarray(holder)


class _Holder:
    def __init__(self, view: Buffer) -> None:
        self._view = view
        self.__array_interface__ = view.__array_interface__


RECEIVED: Final = BufferPool(256 * MIB)
"""For payloads that arrive in parts, on all connections of this process."""

os.register_at_fork(after_in_child=RECEIVED.forked)


@cache
def teach_malloc() -> None:
    """Lets glibc keep the memory of freed messages and tensors, unless the environment has settings of malloc.

    The system would clear new pages for every large tensor, which can take longer than a kernel of torch. Each thread
    allocates from regions of 64 MiB, and glibc unmaps one when all of it is free, but not with padding of that size.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None and not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        for number, nbytes in _MALLOC_OPTIONS.items():
            option(number, nbytes)


_LATER_CALLS: Final = 3
"""How often unused memory is given back again while nothing is used."""


class Reclaimer:
    """Calls a function, in a thread, after some seconds without use, and again after two, four and eight times as long:
    a pass that used large messages may end after that. Does nothing without an event loop."""

    def __init__(self, reclaim: Callable[[], object], seconds: float = IDLE_SECONDS) -> None:
        self._reclaim = reclaim
        self._seconds = seconds
        self._last_used = 0.0
        self._turn = 0  # of the timer that counts
        self._waits = False
        self._calls = 0  # since the last use

    def used(self) -> None:
        """Notes that a large message was sent or received."""
        now, before = time.monotonic(), self._last_used
        self._last_used = now
        # The loop of the timer may have been closed.
        if not self._waits or self._calls or now - before > 2 * self._seconds:
            self._calls = 0
            self._look_after(self._seconds)

    def _look_after(self, seconds: float) -> None:
        self._turn += 1
        with suppress(RuntimeError):
            asyncio.get_running_loop().call_later(seconds, self._look, self._turn)
            self._waits = True

    def _look(self, turn: int) -> None:
        if turn != self._turn:
            return  # it was used meanwhile
        left = self._last_used + self._seconds - time.monotonic()
        if left > 0:
            self._look_after(left)
            return
        self._waits = False
        COPIES.start(self._reclaim)
        if self._calls < _LATER_CALLS:
            self._calls += 1
            self._look_after(self._seconds * 2**self._calls)


def reclaim() -> None:
    """Frees the unused buffers of the pool, and gives the free memory of malloc back to the system."""
    RECEIVED.clear()
    trim()


def trim() -> None:
    """Gives the free memory of malloc back to the system."""
    # Only in the GNU C library; others give memory back by themselves. It locks one arena after the other, and may be
    # called at any time from any thread.
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function(ctypes.c_size_t(0))


RECLAIMER: Final = Reclaimer(reclaim)
"""The reclaimer of this process."""
