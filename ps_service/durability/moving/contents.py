"""The bytes of objects, in blocks that are copied when they have changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch

from ps_wire.errors import InvalidArgumentError

BLOCK_BYTES: Final = 1 << 20


class Contents:
    """Bytes, uint8 [n], with the message that says what they are. At the source it notes which blocks have changed
    since they were read; at the target, which blocks lack."""

    def __init__(self) -> None:
        self.records = b""
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self._changed: dict[int, None] = {}

    @property
    def left(self) -> int:
        """Bytes of the blocks that have changed, or lack, at most."""
        return min(len(self._changed) * BLOCK_BYTES, len(self.bytes))

    def resize(self, nbytes: int) -> None:
        """Has another number of bytes, which have all changed then."""
        if nbytes != len(self.bytes):
            self.bytes = torch.zeros(nbytes, dtype=torch.uint8)
            self._changed = dict.fromkeys(range(-(-nbytes // BLOCK_BYTES)))

    def update(self, records: bytes, chunks: Iterable[memoryview], nbytes: int) -> None:
        """Becomes what some chunks are now, and notes the blocks that differ."""
        self.records = records
        self.resize(nbytes)
        begin = 0
        for chunk in chunks:
            if not len(chunk):
                continue
            now = torch.frombuffer(chunk, dtype=torch.uint8) if not chunk.readonly else _read_only(chunk)
            self._compare(now, begin)
            begin += len(chunk)

    def _compare(self, now: torch.Tensor, begin: int) -> None:
        done = 0
        while done < len(now):
            block = (begin + done) // BLOCK_BYTES
            count = min(len(now) - done, (block + 1) * BLOCK_BYTES - begin - done)
            before, after = self.bytes[begin + done : begin + done + count], now[done : done + count]
            if not torch.equal(before, after):
                before.copy_(after)
                self._changed[block] = None
            done += count

    def take(self, nbytes: int) -> tuple[list[int], torch.Tensor]:
        """The numbers of some blocks that have changed, and what they are."""
        blocks = list(self._changed)[: max(1, nbytes // BLOCK_BYTES)]
        for each in blocks:
            del self._changed[each]
        parts = [self._block(each) for each in blocks]
        return blocks, torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def put(self, blocks: Sequence[int], found: torch.Tensor) -> None:
        """Takes some blocks. Raises `InvalidArgumentError` if they do not fit."""
        begin = 0
        for each in blocks:
            own = self._block(each)
            part = found[begin : begin + len(own)]
            if not len(own) or len(part) != len(own) or found.dtype != torch.uint8:
                raise InvalidArgumentError("these are not the bytes of these blocks")
            own.copy_(part)
            self._changed.pop(each, None)
            begin += len(own)

    def _block(self, number: int) -> torch.Tensor:
        return self.bytes[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]


def _read_only(chunk: memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(chunk), dtype=torch.uint8)
