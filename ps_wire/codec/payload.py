"""Reads and writes payloads: the tensor bytes that are sent beside a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ps_wire.errors import InvalidArgumentError

ALIGNMENT: Final = 64
"""Tensors begin at multiples of this, so that the receiver can use them without a copy."""

_SMALL: Final = 64 * 1024
_LARGE_MESSAGE: Final = 4096
_TIMES: Final = 8
"""A tensor of at most `_SMALL` bytes is copied out of a message of at least `_LARGE_MESSAGE` bytes that is at least
`_TIMES` as large."""

_PADDING: Final = memoryview(bytes(ALIGNMENT))

Buffer = npt.NDArray[np.uint8]


class PayloadWriter:
    """Collects buffers without copying them, and assigns their offsets."""

    __slots__ = ("chunks", "nbytes")

    def __init__(self) -> None:
        self.chunks: list[memoryview] = []
        self.nbytes = 0

    def add(self, chunk: memoryview) -> int:
        """Appends a buffer of bytes and returns its offset. The buffer must not change until it is sent."""
        gap = -self.nbytes % ALIGNMENT
        if gap:
            self.chunks.append(_PADDING[:gap])
            self.nbytes += gap
        offset = self.nbytes
        self.chunks.append(chunk)
        self.nbytes += len(chunk)
        return offset

    def append(self, other: PayloadWriter) -> int:
        """Appends all buffers of another one, whose offsets count from the returned one on."""
        if not other.nbytes:
            return self.nbytes
        first, *rest = other.chunks
        offset = self.add(first)
        # They have their gaps among them.
        self.chunks.extend(rest)
        self.nbytes = offset + other.nbytes
        return offset


class PayloadReader:
    """Returns the bytes of tensors by offset. Every byte belongs to one tensor at most."""

    __slots__ = ("_buffer", "_taken", "nbytes")

    def __init__(self, buffer: Buffer | None = None) -> None:
        self._buffer = buffer
        self._taken = 0
        self.nbytes = 0 if buffer is None else len(buffer)

    def take(self, offset: int, nbytes: int) -> Buffer:
        """The bytes at `offset`, writable and aligned: a copy if they are not aligned, or few and would keep a large
        message alive. If they exceed the payload, or tensors share bytes, that is an `InvalidArgumentError`."""
        have = self.nbytes
        if self._buffer is None or offset + nbytes > have:
            raise InvalidArgumentError(f"a tensor claims bytes {offset}..{offset + nbytes} of a payload of {have}")
        # Some tensors are copied: a small message whose tensors share the same bytes a thousand times must not cost a
        # thousand times the memory.
        self._taken += nbytes
        if self._taken > have:
            raise InvalidArgumentError(f"tensors claim more bytes than the {have} of the payload; none may share any")
        taken = self._buffer[offset : offset + nbytes]
        # Our own sender aligns; others may not, and some of torch's kernels crash on unaligned data.
        # A program that keeps a loss must not keep the logits in the same message alive.
        if offset % ALIGNMENT or (have >= _LARGE_MESSAGE and nbytes <= _SMALL and _TIMES * nbytes <= have):
            return taken.copy()
        return taken

    def part(self, offset: int, nbytes: int) -> Buffer:
        """A part of the payload, for a reader of its own. Parts share no bytes, as tensors do not."""
        if not nbytes:
            return np.empty(0, np.uint8)
        self._taken += nbytes
        if self._buffer is None or offset + nbytes > self.nbytes or self._taken > self.nbytes:
            raise InvalidArgumentError(f"a part claims bytes {offset}..{offset + nbytes} of a payload of {self.nbytes}")
        return self._buffer[offset : offset + nbytes]


NO_PAYLOAD: Final = PayloadReader()
"""For messages without tensors."""


def joined(chunks: Sequence[memoryview], nbytes: int) -> Buffer:
    """A writable copy of several chunks, as one buffer of `nbytes`."""
    buffer = np.empty(nbytes, np.uint8)
    view = buffer.data
    position = 0
    for chunk in chunks:
        view[position : position + len(chunk)] = chunk
        position += len(chunk)
    return buffer
