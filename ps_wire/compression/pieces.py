"""Walks over a long vector in pieces that stay in a core's cache, so that each pass over one costs little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch

ELEMENTS: Final = 1 << 16
"""Elements of a piece, unless one block is longer."""


class Piece(NamedTuple):
    """A part of a vector that consists of whole blocks, or of the last, shorter one: elements from `start` to `end`.
    `shape` is the number of blocks, and the elements of each."""

    start: int
    end: int
    blocks: slice
    shape: tuple[int, int]


def pieces(numel: int, block: int) -> Iterator[Piece]:
    """The pieces of a vector whose blocks have `block` elements each; the last one may have fewer."""
    whole, rest = divmod(numel, block)
    step = max(1, ELEMENTS // block)
    for first in range(0, whole, step):
        last = min(first + step, whole)
        yield Piece(first * block, last * block, slice(first, last), (last - first, block))
    if rest:
        yield Piece(whole * block, numel, slice(whole, whole + 1), (1, rest))


def scratch_for(numel: int, block: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory for the largest of the pieces of a vector."""
    return torch.empty(min(numel, max(block, ELEMENTS)), dtype=dtype, device="cpu")


def blocks_in(numel: int, block: int) -> int:
    """The number of blocks, of which the last may be shorter."""
    return -(-numel // block)
