"""Rows of numbers that grow without copying those that are there."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

import torch

from ps_service.tables.reservation import Reservation

BLOCK_ROWS: Final = 1 << 16
"""Rows per block where memory cannot be reserved."""

MAP_BYTES: Final = 30
"""Most bytes that the map of ids takes for each row: up to 22 for its slot, or fewer in a table of fixed size whose ids
have entries instead, and 8 for the id."""


class RowStorage(ABC):
    """Rows of one width and dtype, numbered from 0. New rows are zero. `flat` is all rows as one tensor [capacity,
    width], for loops that work in place, or None if they are in several."""

    flat: torch.Tensor | None = None

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self.width: Final = width
        self.dtype: Final = dtype

    @abstractmethod
    def grow(self, rows: int) -> None:
        """Makes room for this many rows in all."""

    @abstractmethod
    def read(self, rows: torch.Tensor) -> torch.Tensor:
        """Copies of the rows with these numbers, [n, width]."""

    def between(self, begin: int, end: int) -> torch.Tensor:
        """The rows from `begin` to before `end`, [n, width]: a view where that is possible. Nobody writes to it."""
        return self.read(torch.arange(begin, end, device="cpu"))

    @abstractmethod
    def write(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Replaces the rows with these different numbers by values [n, width]."""

    @abstractmethod
    def clear(self) -> None:
        """Makes all rows zero and gives their memory back."""


class FlatRows(RowStorage):
    """Rows in one tensor over reserved addresses: pages take memory when rows on them are written."""

    flat: torch.Tensor

    def __init__(self, reservation: Reservation, capacity: int, width: int) -> None:
        super().__init__(width, reservation.tensor.dtype)
        self._reservation: Final = reservation
        self.flat = reservation.tensor.view(capacity, width)

    def grow(self, rows: int) -> None:
        assert rows <= len(self.flat)
        self._reservation.grown(rows * self.width)

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        return self.flat.index_select(0, rows)

    def between(self, begin: int, end: int) -> torch.Tensor:
        return self.flat[begin:end]

    def write(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        self.flat.index_copy_(0, rows, values)

    def clear(self) -> None:
        self._reservation.clear()


class BlockRows(RowStorage):
    """Rows in tensors of `BLOCK_ROWS` rows. Reading and writing take one call of torch for each touched block."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__(width, dtype)
        self._blocks: dict[int, torch.Tensor] = {}

    def grow(self, rows: int) -> None:
        """Does nothing: a block is made when one of its rows is used."""

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        values = torch.empty(len(rows), self.width, dtype=self.dtype, device="cpu")
        for block, chosen in self._parts(rows):
            values[chosen] = block[rows[chosen] % BLOCK_ROWS]
        return values

    def write(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        for block, chosen in self._parts(rows):
            block[rows[chosen] % BLOCK_ROWS] = values[chosen]

    def clear(self) -> None:
        self._blocks.clear()

    def _parts(self, rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each block that has some of the rows, with the positions of those."""
        numbers = rows // BLOCK_ROWS
        order = numbers.argsort()
        touched, counts = numbers[order].unique_consecutive(return_counts=True)
        blocks = [self._block(each) for each in touched.tolist()]
        return list(zip(blocks, order.split(counts.tolist()), strict=True))

    def _block(self, number: int) -> torch.Tensor:
        if number not in self._blocks:
            self._blocks[number] = torch.zeros(BLOCK_ROWS, self.width, dtype=self.dtype, device="cpu")
        return self._blocks[number]


def make_rows(capacity: int, width: int, dtype: torch.dtype) -> RowStorage:
    """Storage for at most `capacity` rows of `width` elements."""
    reserved = Reservation.make(capacity * width, dtype)
    return BlockRows(width, dtype) if reserved is None else FlatRows(reserved, capacity, width)


def rows_in_memory(dim: int, dtype: torch.dtype, widths: Mapping[str, int]) -> int:
    """As many rows as would fill the memory of the machine, with the numbers that the optimizer keeps in float32."""
    row_bytes = dim * dtype.itemsize + 4 * sum(widths.values())
    return max(1, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // row_bytes)
