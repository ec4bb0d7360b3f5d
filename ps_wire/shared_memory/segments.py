"""Segments of shared memory, in which two processes of one host exchange tensors.

A segment is an anonymous file in memory (`memfd_create`). It has no name, only the two processes that have its
descriptor can map it, and it is freed with them, however they end. Its size is sealed, so that neither side can crash
the other by truncating it.

The sender owns a segment. It copies tensors in, sends the segment's number and the size, and does not write to it again
until the receiver gives it back, which happens when the last tensor over it is freed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import numpy as np
import torch

from ps_wire.connections.buffers import lent
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import MIB

if TYPE_CHECKING:
    from ps_wire.codec.payload import Buffer

SMALLEST: Final = MIB // 4
"""Smallest segment. Sizes are powers of two, so that few segments serve all messages, or eighths of large ones."""

_LARGE: Final = 64 * MIB
"""Size from which on segments differ by eighths of a power of two: half of one would often be too much for the pool."""

MOST: Final = 128
"""Most segments of one direction of a connection. They cost no descriptors once the receiver has mapped them."""

_MUCH_TOO_LARGE: Final = 8
"""A free segment that is more than this many times too large is left to larger messages, if there is another."""

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Segment:
    """A segment that this process writes to.

    The receiver has its descriptor once it is `known`. It has been `free_since` that time of the monotonic clock, in
    seconds.
    """

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = nbytes
        self.known = False
        self.free_since = 0.0
        self.descriptor = os.memfd_create("ps-shm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, nbytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._bytes = _mapped(self.descriptor, nbytes)
        except OSError:
            os.close(self.descriptor)
            raise

    def write(self, chunks: Sequence[memoryview]) -> None:
        """Copies chunks into it, one after the other."""
        # The connection may be closed meanwhile.
        target = self._bytes
        position = 0
        for chunk in chunks:
            end = position + len(chunk)
            # numpy releases the GIL during a copy; assigning to a slice of a memoryview does not.
            target[position:end] = np.frombuffer(chunk, np.uint8)
            position = end

    def hand_over(self) -> int:
        """Returns its descriptor, once; the caller closes it."""
        descriptor, self.descriptor = self.descriptor, -1
        self.known = True
        return descriptor

    def close(self) -> None:
        """Unmaps it; it stays mapped in the receiver."""
        if self.descriptor >= 0:
            os.close(self.hand_over())
        self._bytes = np.empty(0, np.uint8)


class SegmentPool:
    """The segments that this process writes to on one shared-memory connection, at most `max_bytes` together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._all: dict[int, Segment] = {}
        self._free: list[Segment] = []
        self._dropped: list[int] = []
        self._last = 0
        self.nbytes = 0

    def take(self, nbytes: int) -> Segment | None:
        """A segment for `nbytes`; None if the pool is full, and the payload has to be sent on the socket.

        Raises `OSError` if the system has no memory or descriptors left.
        """
        power = max(SMALLEST, 1 << (nbytes - 1).bit_length())
        size = power if power <= _LARGE else -(-nbytes // (power // 8)) * (power // 8)
        best, best_bytes = None, _MUCH_TOO_LARGE * size + 1
        # The one that came back last, so that surplus segments stay unused and can be dropped.
        for segment in reversed(self._free):
            if nbytes <= segment.nbytes < best_bytes:
                best, best_bytes = segment, segment.nbytes
        if best is not None:
            self._free.remove(best)
            return best
        if not self._make_room(size):
            return None
        self._last += 1
        made = self._all[self._last] = Segment(self._last, size)
        self.nbytes += size
        return made

    def give_back(self, number: int) -> None:
        """The receiver has given a segment back. If it did not have it, that is an `InvalidArgumentError`."""
        segment = self._all.get(number)
        if segment is None or segment in self._free:
            raise InvalidArgumentError(f"segment {number} was given back, but not handed out")
        segment.free_since = time.monotonic()
        self._free.append(segment)

    def retire(self, number: int) -> None:
        """The same for a segment that must not be used again, because a forked child may still read it."""
        self.give_back(number)
        self._drop(self._free[-1])

    def trim(self, seconds: float) -> None:
        """Drops the segments that have been free for `seconds`."""
        since = time.monotonic() - seconds
        while self._free and self._free[0].free_since <= since:
            self._drop(self._free[0])

    def take_dropped(self) -> list[int]:
        """Numbers of the segments that were dropped since the last call, to be sent to the receiver."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def close(self) -> None:
        """Unmaps every segment."""
        for segment in self._all.values():
            segment.close()
        self._all.clear()
        self._free.clear()
        self.nbytes = 0

    def _make_room(self, nbytes: int) -> bool:
        """Drops free segments until there is room for one of `nbytes`; returns whether there is."""
        used = self.nbytes - sum(segment.nbytes for segment in self._free)
        if used + nbytes > self._max_bytes or len(self._all) - len(self._free) >= MOST:
            return False
        while self.nbytes + nbytes > self._max_bytes or len(self._all) >= MOST:
            self._drop(self._free[0])
        return True

    def _drop(self, segment: Segment) -> None:
        self._free.remove(segment)
        del self._all[segment.number]
        self.nbytes -= segment.nbytes
        if segment.known:
            self._dropped.append(segment.number)
        segment.close()


class SegmentView:
    """The segments that the other side writes to, at most `max_bytes` together.

    Tensors over those that are `lent` are in use. `give_back` is called from any thread when a segment is not used any
    more, with its number, and with whether it must not be written to again, because a forked child may still read it.
    """

    def __init__(self, max_bytes: int, give_back: Callable[[int, bool], None]) -> None:
        self._max_bytes = max_bytes
        self._give_back = give_back
        self.mapped: dict[int, Buffer] = {}
        self.lent: set[int] = set()
        self._in_children: set[int] = set()
        _views.add(self)

    def add(self, number: int, descriptor: int) -> None:
        """Maps a segment, and closes the descriptor; an `InvalidArgumentError` if it is not sealed, or too large."""
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise InvalidArgumentError("a segment must be sealed")
            nbytes = os.fstat(descriptor).st_size
            if sum(map(len, self.mapped.values())) + nbytes > 2 * self._max_bytes:
                raise InvalidArgumentError("the other side hands over more shared memory than was agreed")
            self.mapped[number] = _mapped(descriptor, nbytes)
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(f"not a segment: {error}") from None
        finally:
            os.close(descriptor)

    def bytes_of(self, number: int, nbytes: int) -> Buffer:
        """The first bytes of a segment, without a copy. It is given back when the last array over them is freed."""
        mapped = self.mapped.get(number)
        if mapped is None or nbytes > len(mapped):
            raise InvalidArgumentError(f"segment {number} has no {nbytes} bytes")
        self.lent.add(number)
        return lent(mapped, nbytes, partial(self._take_back, number))

    def forget(self, number: int) -> None:
        """Unmaps a segment that the other side has dropped."""
        self.mapped.pop(number, None)

    def close(self) -> None:
        """Unmaps every segment, except those with tensors in use."""
        self.mapped.clear()

    def _take_back(self, number: int) -> None:
        self.lent.discard(number)
        in_child = number in self._in_children
        self._in_children.discard(number)
        self._give_back(number, in_child)

    def fork(self) -> None:
        """Called before a fork: the child can read the tensors that are in use, as long as it lives."""
        self._in_children |= self.lent


_views: Final[WeakSet[SegmentView]] = WeakSet()


def _before_fork() -> None:
    for view in list(_views):
        view.fork()


os.register_at_fork(before=_before_fork)


def _mapped(descriptor: int, nbytes: int) -> Buffer:
    """Shared memory as an array, which unmaps it when it is freed. Python's `mmap` would keep a descriptor as long."""
    try:
        tensor = torch.from_file(f"/proc/self/fd/{descriptor}", shared=True, size=nbytes, dtype=torch.uint8)
    except RuntimeError as error:
        raise OSError(f"memory cannot be mapped: {error}") from None
    array: Buffer = tensor.numpy()
    return array
