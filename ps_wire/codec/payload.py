"""Payload: the tensor bytes of one message, beside the message itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ps_wire.errors import InvalidArgumentError

ALIGNMENT: Final = 64
"""Tensors begin at multiples of this, so that the receiver can use them where they lie."""

_SMALL: Final = 64 * 1024
"""Tensors up to this size do not keep a message that is many times larger."""

_LARGE_MESSAGE: Final = 4096
"""Messages from this size on are worth being freed."""

_TIMES: Final = 8
"""How many times larger a message has to be for a small tensor to be copied out of it."""

_PADDING: Final = memoryview(bytes(ALIGNMENT))

Buffer = npt.NDArray[np.uint8]


class PayloadWriter:
    """Collects buffers without copying them, and says where each will stand."""

    __slots__ = ("chunks", "nbytes")

    def __init__(self) -> None:
        self.chunks: list[memoryview] = []
        self.nbytes = 0

    def add(self, chunk: memoryview) -> int:
        """Appends a buffer of bytes and returns its offset. The buffer must not change until it was sent."""
        gap = -self.nbytes % ALIGNMENT
        if gap:
            self.chunks.append(_PADDING[:gap])
            self.nbytes += gap
        offset = self.nbytes
        self.chunks.append(chunk)
        self.nbytes += len(chunk)
        return offset


class PayloadReader:
    """Hands out the bytes of tensors by offset; no byte belongs to two of them.

    Attributes:
        nbytes: How many bytes the message has.
    """

    __slots__ = ("_buffer", "_taken", "nbytes")

    def __init__(self, buffer: Buffer | None = None) -> None:
        self._buffer = buffer
        self._taken = 0
        self.nbytes = 0 if buffer is None else len(buffer)

    def take(self, offset: int, nbytes: int) -> Buffer:
        """The bytes at `offset`, writable and aligned.

        They are copied if they are not aligned where they lie, or if they are few and would keep a large message.

        Raises:
            InvalidArgumentError: They are not all there, or more were taken than there are.
        """
        have = self.nbytes
        if self._buffer is None or offset + nbytes > have:
            raise InvalidArgumentError(f"a tensor claims bytes {offset}..{offset + nbytes} of a payload of {have}")
        # Some tensors are copied: a small message that claims the same bytes a thousand times must not cost a thousand
        # times the memory.
        self._taken += nbytes
        if self._taken > have:
            raise InvalidArgumentError(f"tensors claim more bytes than the {have} of the payload; none may share any")
        taken = self._buffer[offset : offset + nbytes]
        # Our own sender aligns; others may not, and some of torch's kernels end the process over numbers that are not.
        # A program that keeps a loss must not keep the logits that came beside it.
        if offset % ALIGNMENT or (have >= _LARGE_MESSAGE and nbytes <= _SMALL and _TIMES * nbytes <= have):
            return taken.copy()
        return taken


NO_PAYLOAD: Final = PayloadReader()
"""For messages without tensors."""


def joined(chunks: Sequence[memoryview], nbytes: int) -> Buffer:
    """A writable copy of chunks that lie apart, as one buffer of `nbytes`."""
    buffer = np.empty(nbytes, np.uint8)
    view = buffer.data
    position = 0
    for chunk in chunks:
        view[position : position + len(chunk)] = chunk
        position += len(chunk)
    return buffer
