"""The rows of one version of a table."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import index
from typing import Any, Final

import numpy as np

from ps_reader.layout import PLACE_BITS, TableFiles
from ps_reader.safetensors_file import BF16, TensorFile, as_numbers

_ROW: Final = (1 << PLACE_BITS) - 1
_DTYPES: Final = {"float32": "F32", "float16": "F16", "bfloat16": BF16}
_MOST_ID: Final = (1 << 63) - 1
REMOVED: Final = -1
"""The place of an id whose row was removed."""


class Overlay:
    """Where the rows are that have changed since the base: different ids in ascending order, and the place of each; -1
    for one that was removed. It is of a base with this index, and of these parts, those of the base first."""

    def __init__(self, ids: np.ndarray, places: np.ndarray, index: str, parts: tuple[str, ...]) -> None:
        self.ids = ids
        self.places = places
        self.index = index
        self.parts = parts

    @classmethod
    def empty(cls, files: TableFiles) -> Overlay:
        """That of the base alone."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), files.index, tuple(files.parts[: files.base]))

    def is_of(self, files: TableFiles) -> bool:
        """Whether these files have the same base, and the same parts, or some more."""
        return self.index == files.index and list(self.parts) == files.parts[: len(self.parts)]

    def with_part(self, name: str, number: int, part: TensorFile) -> Overlay:
        """The overlay with another part on top."""
        ids, removed = part.arrays["ids"], part.arrays["removed"]
        places = np.arange(len(ids), dtype=np.int64) + (number << PLACE_BITS)
        new = np.concatenate([removed, ids])
        new_places = np.concatenate([np.full(len(removed), REMOVED, np.int64), places])
        # Of an id that is there twice, the last.
        new, last = np.unique(new[::-1], return_index=True)
        new_places = new_places[::-1][last]
        at = np.searchsorted(self.ids, new)
        known = _equal_at(self.ids, at, new)
        merged = self.places.copy()
        merged[at[known]] = new_places[known]
        ids = np.insert(self.ids, at[~known], new[~known])
        places = np.insert(merged, at[~known], new_places[~known])
        return Overlay(ids, places, self.index, (*self.parts, name))


def check_part(files: TableFiles, part: TensorFile) -> None:
    """Raises `ValueError` or `KeyError` if a part is none of the table."""
    ids, values, removed = (part.arrays[name] for name in ("ids", "values", "removed"))
    if values.shape != (len(ids), files.dim) or part.dtypes["values"] != _DTYPES[files.dtype]:
        raise ValueError(f"a part has rows {values.shape} of {part.dtypes['values']}")
    if ids.dtype != np.int64 or removed.dtype != np.int64 or ids.ndim != 1 or removed.ndim != 1:
        raise ValueError("a part has other ids than int64 [n]")


def check_base(files: TableFiles, parts: Sequence[TensorFile], index_file: TensorFile) -> None:
    """The same for the parts of a base and its index."""
    for each in parts[: files.base]:
        check_part(files, each)
    ids, places = index_file.arrays["ids"], index_file.arrays["place"]
    if ids.dtype != np.int64 or places.dtype != np.int64 or ids.ndim != 1 or places.shape != ids.shape:
        raise ValueError("the index has other columns than int64 [n]")
    if (ids[1:] <= ids[:-1]).any():
        raise ValueError("the index is not in the order of ids")
    sizes = np.array([len(each.arrays["ids"]) for each in parts[: files.base]], np.int64)
    numbers, rows = places >> PLACE_BITS, places & _ROW
    if len(ids) and (numbers.min() < 0 or numbers.max() >= len(sizes) or (rows >= sizes[numbers]).any()):
        raise ValueError("the index names rows that are not there")


def _equal_at(sorted_ids: np.ndarray, at: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Which ids are at these places."""
    if not len(sorted_ids):
        return np.zeros(len(ids), bool)
    equal: np.ndarray = sorted_ids[np.minimum(at, len(sorted_ids) - 1)] == ids
    return equal


class Places:
    """Where the row of each id is: in the base, whose index is a file, or in a later part."""

    def __init__(self, index_file: TensorFile, over: Overlay) -> None:
        self._index = index_file
        self.ids, self.places = index_file.arrays["ids"], index_file.arrays["place"]
        self.over = over
        # Bisect finds one number in a memoryview in a third of the time that numpy takes for it.
        self._each = tuple(
            (ids.data, places.data) for ids, places in ((over.ids, over.places), (self.ids, self.places)) if len(ids)
        )

    def with_part(self, name: str, number: int, part: TensorFile) -> Places:
        """The same with another part on top."""
        return Places(self._index, self.over.with_part(name, number, part))

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The places of ids, int64 [n]; -1 for those without a row."""
        places = np.full(len(ids), REMOVED, np.int64)
        for known_ids, known_places in ((self.ids, self.places), (self.over.ids, self.over.places)):
            at = np.searchsorted(known_ids, ids)
            known = _equal_at(known_ids, at, ids)
            places[known] = known_places[at[known]]
        return places

    def find_one(self, id: int) -> int:
        """The place of an id; -1 if it has no row."""
        id = index(id)
        for ids, places in self._each:
            at = bisect_left(ids, id)
            if at < len(ids) and ids[at] == id:
                return places[at]
        return REMOVED

    def current(self) -> np.ndarray:
        """The places of all rows, int64 [rows]."""
        base = self.places[~np.isin(self.ids, self.over.ids, assume_unique=True)]
        return np.concatenate([base, self.over.places[self.over.places != REMOVED]])

    def all_ids(self) -> np.ndarray:
        """The ids of all rows, int64 [rows], in ascending order."""
        base = self.ids[~np.isin(self.ids, self.over.ids, assume_unique=True)]
        return np.sort(np.concatenate([base, self.over.ids[self.over.places != REMOVED]]))


class TableVersion:
    """The rows of a table as they were at one version. Any number of threads may use it.

    Attributes:
        name: The name of the table.
        dim: Numbers in a row.
        dtype: Their dtype, as torch calls it: "float32", "float16" or "bfloat16".
        rows: Number of rows.
    """

    def __init__(self, name: str, files: TableFiles, parts: Sequence[TensorFile], places: Places) -> None:
        self.name = name
        self.dim = files.dim
        self.dtype = files.dtype
        self.rows = files.rows
        self._values = [each.arrays["values"] for each in parts]
        self._is_bf16 = files.dtype == "bfloat16"
        self._places = places

    def __len__(self) -> int:
        return self.rows

    def look_up(self, ids: Any, default: Any = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """The rows of ids.

        Args:
            ids: Whole numbers, of any shape.
            default: What ids without a row have: a number, or a row [dim].

        Returns:
            Copies of the rows, [*shape, dim], float16 where the table has that, and otherwise float32; and which ids
            have one, bool in the shape of the ids.

        Raises:
            TypeError, OverflowError: The ids are no whole numbers of 64 bits.
        """
        given = np.asarray(ids)
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"ids are whole numbers of 64 bits, not {given.dtype}")
        if given.size and given.dtype == np.uint64 and given.max() > _MOST_ID:
            raise OverflowError(f"ids are at most {_MOST_ID}, not {given.max()}")
        flat = given.astype(np.int64, copy=False).reshape(-1)
        places = self._places.find(flat)
        found = places >= 0
        kind = np.float16 if self.dtype == "float16" else np.float32
        values = np.empty((len(flat), self.dim), kind)
        if not found.all():
            values[~found] = default
        numbers = places >> PLACE_BITS
        for number in np.unique(numbers[found]):
            chosen = numbers == number
            rows = self._values[number][places[chosen] & _ROW]
            values[chosen] = as_numbers(rows, BF16) if self._is_bf16 else rows
        return values.reshape(*given.shape, self.dim), found.reshape(given.shape)

    def __getitem__(self, id: int) -> np.ndarray:
        """The row of an id, [dim], without a copy (of bfloat16 one in float32). Raises `KeyError` if it has none."""
        place = self._places.find_one(id)
        if place == REMOVED:
            raise KeyError(id)
        row: np.ndarray = self._values[place >> PLACE_BITS][place & _ROW]
        return as_numbers(row, BF16) if self._is_bf16 else row

    def __contains__(self, id: int) -> bool:
        return self._places.find_one(id) != REMOVED

    def ids(self) -> np.ndarray:
        """All ids, int64 [rows], in ascending order."""
        return self._places.all_ids()

    def blocks(self, rows: int = 1 << 16) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All ids and rows, in ascending order of ids, in blocks of at most so many: int64 [n], and [n, dim] as from
        `look_up`."""
        ids = self.ids()
        for low in range(0, len(ids), rows):
            some = ids[low : low + rows]
            yield some, self.look_up(some)[0]

    def __repr__(self) -> str:
        return f"<TableVersion {self.name!r}, {self.rows:,} rows of {self.dim} {self.dtype}>"
