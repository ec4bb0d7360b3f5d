"""Rows of numbers that grow without copying those that are there."""

from __future__ import annotations

from typing import Final, Protocol

import torch

from ps_service.tables.reservation import Reservation

BLOCK_ROWS: Final = 1 << 16
"""Rows per block where memory cannot be reserved."""


class RowStorage(Protocol):
    """Rows of one width and dtype, numbered from 0. New rows are zero.

    Attributes:
        width: Elements of a row.
        dtype: Their dtype.
        flat: All rows as one tensor [capacity, width], or None if they are in several. Kernels that work on it in place
            use it where it is there.
    """

    @property
    def width(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def flat(self) -> torch.Tensor | None: ...

    def grow(self, rows: int) -> None:
        """Makes room for this many rows in all."""

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        """Copies of the rows with these numbers, [n, width]."""

    def write(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Replaces the rows with these different numbers by values [n, width]."""

    def clear(self) -> None:
        """Makes all rows zero and gives their memory back."""


class FlatRows:
    """Rows in one tensor over reserved addresses: pages take memory when rows on them are written."""

    def __init__(self, reservation: Reservation, capacity: int, width: int) -> None:
        self.width: Final = width
        self.dtype: Final = reservation.tensor.dtype
        self.flat: torch.Tensor | None = reservation.tensor.view(capacity, width)
        self._capacity: Final = capacity
        self._reservation = reservation

    def grow(self, rows: int) -> None:
        assert rows <= self._capacity
        self._reservation.used(rows * self.width)

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        assert self.flat is not None
        return self.flat.index_select(0, rows)

    def write(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        assert self.flat is not None
        self.flat.index_copy_(0, rows, values)

    def clear(self) -> None:
        self._reservation.clear()


class BlockRows:
    """Rows in tensors of `BLOCK_ROWS` rows. Reading and writing take one call of torch for each touched block."""

    flat: torch.Tensor | None = None

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self.width: Final = width
        self.dtype: Final = dtype
        self._blocks: list[torch.Tensor] = []

    def grow(self, rows: int) -> None:
        while len(self._blocks) * BLOCK_ROWS < rows:
            self._blocks.append(torch.zeros(BLOCK_ROWS, self.width, dtype=self.dtype))

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        values = torch.empty(len(rows), self.width, dtype=self.dtype)
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
        return list(zip([self._blocks[each] for each in touched.tolist()], order.split(counts.tolist()), strict=True))


def make_rows(capacity: int, width: int, dtype: torch.dtype) -> RowStorage:
    """Storage for at most `capacity` rows of `width` elements."""
    reserved = Reservation.make(capacity * width, dtype)
    return BlockRows(width, dtype) if reserved is None else FlatRows(reserved, capacity, width)
