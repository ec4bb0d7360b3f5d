"""Segments: shared memory in which tensors cross between two processes of one host.

A segment is an anonymous file in memory (`memfd_create`): it has no name, only the two processes that were handed its
descriptor can map it, and it is gone with them however they end. Its size is sealed, so that neither side can make the
other fault by truncating it.

The sender owns a segment. It copies tensors in, says which segment and how many bytes, and leaves it alone until the
receiver gives it back, which happens when the last tensor that was made over it dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ps_wire.buffers import lent
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import MIB
from ps_wire.payload import Buffer

SMALLEST: Final = MIB // 4
"""Segments are powers of two from here on, so that few of them serve all messages."""

MOST: Final = 128
"""Segments of one direction of a lane: each costs its two processes three descriptors."""

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Segment:
    """A segment this process writes to.

    Attributes:
        number: What both sides call it.
        nbytes: Its size.
        descriptor: To hand over once.
        known: Whether the receiver has the descriptor.
    """

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.nbytes = nbytes
        self.known = False
        self.descriptor = os.memfd_create("ps-lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, nbytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._bytes: Buffer = np.frombuffer(mmap.mmap(self.descriptor, nbytes), np.uint8)
        except OSError:
            os.close(self.descriptor)
            raise

    def write(self, chunks: Sequence[memoryview]) -> None:
        """Copies chunks in, one behind the other."""
        # The lane may be closed meanwhile.
        target = self._bytes
        position = 0
        for chunk in chunks:
            end = position + len(chunk)
            # numpy's copy lets other threads run; a slice of a memoryview does not.
            target[position:end] = np.frombuffer(chunk, np.uint8)
            position = end

    def close(self) -> None:
        """Lets go of it; what the receiver mapped stays mapped there."""
        os.close(self.descriptor)
        self._bytes = np.empty(0, np.uint8)


class SegmentPool:
    """The segments this process writes to on one lane.

    Args:
        max_bytes: How large all of them together may become.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._all: dict[int, Segment] = {}
        self._free: list[Segment] = []
        self._dropped: list[int] = []
        self._last = 0
        self.nbytes = 0

    def take(self, nbytes: int) -> Segment | None:
        """A segment for so many bytes, or None when the pool is full; the message must then take another way.

        Raises:
            OSError: The system has no memory or descriptors left.
        """
        fitting = [segment for segment in self._free if segment.nbytes >= nbytes]
        if fitting:
            # Not a huge one for a small message, if there is another.
            best = min(fitting, key=lambda segment: segment.nbytes)
            self._free.remove(best)
            return best
        size = max(SMALLEST, 1 << (nbytes - 1).bit_length())
        if self.nbytes + size > self._max_bytes:
            self._shrink(self.nbytes + size - self._max_bytes)
        if self.nbytes + size > self._max_bytes or len(self._all) >= MOST:
            return None
        self._last += 1
        made = self._all[self._last] = Segment(self._last, size)
        self.nbytes += size
        return made

    def give_back(self, number: int) -> None:
        """The receiver needs it no longer.

        Raises:
            InvalidArgumentError: It does not have it.
        """
        segment = self._all.get(number)
        if segment is None or segment in self._free:
            raise InvalidArgumentError(f"segment {number} was given back, but not handed out")
        self._free.append(segment)

    def take_dropped(self) -> list[int]:
        """Numbers of the segments that were dropped since the last time; the receiver must hear of it."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def close(self) -> None:
        """Lets go of every segment."""
        for segment in self._all.values():
            segment.close()
        self._all.clear()
        self._free.clear()
        self.nbytes = 0

    def _shrink(self, nbytes: int) -> None:
        """Drops free segments, so that room for another size comes free."""
        for segment in list(self._free):
            if nbytes <= 0:
                return
            self._free.remove(segment)
            del self._all[segment.number]
            self._dropped.append(segment.number)
            self.nbytes -= segment.nbytes
            nbytes -= segment.nbytes
            segment.close()


class SegmentView:
    """The segments the other side writes to.

    Args:
        max_bytes: How large all of them together may be.
        give_back: Called with a segment's number, from any thread, when nobody uses it any more.
    """

    def __init__(self, max_bytes: int, give_back: Callable[[int], None]) -> None:
        self._max_bytes = max_bytes
        self._give_back = give_back
        self._mapped: dict[int, Buffer] = {}

    def add(self, number: int, descriptor: int) -> None:
        """Maps a segment; the descriptor is closed.

        Raises:
            InvalidArgumentError: It is not sealed, too large, or no segment at all.
        """
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise InvalidArgumentError("a segment must be sealed")
            nbytes = os.fstat(descriptor).st_size
            if sum(map(len, self._mapped.values())) + nbytes > 2 * self._max_bytes:
                raise InvalidArgumentError("the other side hands over more shared memory than was agreed")
            self._mapped[number] = np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(f"not a segment: {error}") from None
        finally:
            os.close(descriptor)

    def bytes_of(self, number: int, nbytes: int) -> Buffer:
        """The first bytes of a segment, where they lie; it is given back when the last array over them dies.

        Raises:
            InvalidArgumentError: There is no such segment, or it is smaller.
        """
        mapped = self._mapped.get(number)
        if mapped is None or nbytes > len(mapped):
            raise InvalidArgumentError(f"segment {number} has no {nbytes} bytes")
        return lent(mapped, nbytes, lambda: self._give_back(number))

    def forget(self, number: int) -> None:
        """The other side has dropped this one."""
        self._mapped.pop(number, None)
