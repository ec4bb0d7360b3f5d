"""The files of one table in an export, and how changes become files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from ps_reader.errors import ExportError
from ps_reader.layout import PLACE_BITS, TableFiles
from ps_reader.safetensors_file import TensorFile
from ps_reader.tables import REMOVED, Overlay, Places, check_base, check_part

if TYPE_CHECKING:
    from trainer_client.serving.export_folder import Folder
    from trainer_client.tables.changes import Change, Version

PART_BYTES: Final = 128 << 20
"""Bytes of rows after which a file is written."""

MOST_PARTS: Final = 64
"""Small parts behind the base, after which all behind it are joined."""

LEAST_CHANGED: Final = 1 << 16
"""With rows in them of half of all, and at least these, a base is written anew."""

_log: Final = logging.getLogger("trainer_client")

_NONE: Final = np.empty(0, np.int64)
_ROW: Final = (1 << PLACE_BITS) - 1


class ExportedTable:
    """Its methods block, and are called one after the other. `files` are those of the newest version; None before the
    first. The table begins with these of an earlier program."""

    def __init__(
        self, folder: Folder, name: str, dim: int, dtype: torch.dtype, codec: str, files: TableFiles | None
    ) -> None:
        self._folder = folder
        self._name = name
        self._dim = dim
        self._dtype = str(dtype).removeprefix("torch.")
        self._codec = codec
        self._empty = torch.empty(0, dim, dtype=dtype)
        self._waiting: list[Change] = []
        self._bytes = 0
        self._parts: list[str] = []
        self._open: dict[str, TensorFile] = {}
        # While all rows are read: how many were written, and after how many those are looked for that have gone since.
        self._is_base, self._written, self._limit = True, 0, 2 * LEAST_CHANGED
        self.files: TableFiles | None = None
        is_like = files is not None and (files.dim, files.dtype, files.codec) == (dim, self._dtype, codec)
        if files is not None and is_like and folder.has_all(files.parts):
            try:
                self._go_on(files)
            except (ExportError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
                _log.warning("all rows of table %r are exported anew, because its files are damaged: %r", name, error)

    def _go_on(self, files: TableFiles) -> None:
        parts = [self._file(each) for each in files.parts]
        check_base(files, parts, self._file(files.index))
        for each in parts[files.base :]:
            check_part(files, each)
        if not files.source or not all(len(each) == 2 for each in files.source.values()):
            raise ValueError("it has no version of its owners")
        self._parts, self._base, self._index, self._is_base = list(files.parts), files.base, files.index, False
        self._empty_over = over = Overlay.empty(files)
        for number in range(files.base, len(files.parts)):
            over = over.with_part(files.parts[number], number, self._file(files.parts[number]))
        self._places = Places(self._file(files.index), over)
        self._rows, self.files = files.rows, files

    @property
    def version(self) -> Version | None:
        """From which on changes are wanted; None for all rows."""
        return None if self.files is None else {owner: (each[0], each[1]) for owner, each in self.files.source.items()}

    @property
    def is_whole(self) -> bool:
        """Whether nothing was taken since the newest version."""
        return self.files is not None and not self._waiting and self._parts == self.files.parts

    def is_like(self, dim: int, dtype: torch.dtype) -> bool:
        """Whether it is of rows like these."""
        return (self._dim, self._empty.dtype) == (dim, dtype)

    def take(self, change: Change) -> bool:
        """Takes a change, and says whether there is a new version with it."""
        if change.resets:
            self.forget()
        self._waiting.append(change)
        self._bytes += change.values.nbytes + change.ids.nbytes + change.removed.nbytes
        if self._bytes >= PART_BYTES or change.version is not None:
            self._write()
        if change.version is None:
            if self._is_base and self._written > self._limit:
                self._settle()
            elif not self._is_base and self._changed() > 2 * max(LEAST_CHANGED, self._rows):
                self._join_unversioned()
            return False
        if self._is_base:
            self._begin_base(self._parts)
        elif self._changed() > max(LEAST_CHANGED, self._rows // 2):
            self._begin_base(list(self._rewritten(self._places.current(), _NONE)))
        elif sum(map(self._is_small, self._parts[self._base :])) > MOST_PARTS:
            self._join_changed()
        source = {owner: list(each) for owner, each in change.version.items()}
        self.files = self._files_of(source)
        self._open = {name: each for name, each in self._open.items() if name in (*self._parts, self._index)}
        return True

    def _files_of(self, source: dict[str, list[int]]) -> TableFiles:
        parts = list(self._parts)
        return TableFiles(self._dim, self._dtype, self._codec, parts, self._base, self._index, self._rows, source)

    def forget(self) -> None:
        """All rows come anew, or nothing more: what was written of them since the newest version is removed."""
        known = set() if self.files is None else {*self.files.parts, self.files.index}
        self._folder.remove(each for each in self._parts if each not in known)
        self._waiting, self._bytes, self._parts, self._is_base = [], 0, [], True
        self._written, self._limit = 0, 2 * LEAST_CHANGED
        self._open = {each: file for each, file in self._open.items() if each in known}

    def _write(self) -> None:
        """Writes what has been taken into a part."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        # Of an id that is there twice, the last, whether it has a row there or none.
        order = torch.cat([torch.cat([each.removed, each.ids]) for each in waiting])
        values = torch.cat(
            [torch.cat([self._empty.new_zeros(len(each.removed), self._dim), each.values]) for each in waiting]
        )
        is_row = torch.cat(
            [torch.cat([torch.zeros_like(each.removed), torch.ones_like(each.ids)]) for each in waiting]
        ).bool()
        ids, inverse = torch.unique(order, return_inverse=True)
        last = torch.zeros_like(ids).scatter_reduce_(0, inverse, torch.arange(len(order)), "amax")
        there = is_row[last]
        part = {"ids": ids[there], "values": values[last[there]], "removed": ids[~there]}
        if not len(ids) and not (self._is_base and not self._parts):
            return
        name = self._folder.write_rows(self._name, part)
        self._parts.append(name)
        self._written += len(ids)
        if not self._is_base:
            self._count(name)

    def _count(self, name: str) -> None:
        part = self._file(name)
        ids, removed = part.arrays["ids"], part.arrays["removed"]
        self._rows += int((self._places.find(ids) < 0).sum()) - int((self._places.find(removed) >= 0).sum())
        self._places = self._places.with_part(name, len(self._parts) - 1, part)

    def _is_small(self, name: str) -> bool:
        return sum(each.nbytes for each in self._file(name).arrays.values()) < PART_BYTES // 2

    def _changed(self) -> int:
        return sum(
            len(part.arrays["ids"]) + len(part.arrays["removed"]) for part in map(self._file, self._parts[self._base :])
        )

    def _begin_base(self, parts: list[str]) -> None:
        """Makes these parts a base, whose index has the place of the last row of each id."""
        ids, places = self._last_rows(parts)
        self._parts, self._base, self._is_base = parts, len(parts), False
        self._index = self._folder.write(
            self._name, {"ids": torch.from_numpy(ids.copy()), "place": torch.from_numpy(places.copy())}
        )
        self._rows = len(ids)
        self._empty_over = Overlay.empty(self._files_of({}))
        self._places = Places(self._file(self._index), self._empty_over)

    def _settle(self) -> None:
        """Writes all rows that there are so far anew, if that are much fewer than have come: what has changed since it
        was read goes."""
        _, places = self._last_rows(self._parts)
        if self._written > 2 * max(LEAST_CHANGED, len(places)):
            before, self._written = self._parts, len(places)
            self._parts = list(self._rewritten(places, _NONE))
            self._folder.remove(before)
            self._open = {name: each for name, each in self._open.items() if name not in before}
        self._limit = max(2 * LEAST_CHANGED, 2 * len(places), self._written * 3 // 2)

    def _last_rows(self, parts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids that have a row behind these parts, in ascending order, and the places of their rows."""
        opened = [self._file(name) for name in parts]
        ids = np.concatenate([each.arrays["ids"] for each in opened])
        places = np.concatenate(
            [np.arange(len(each.arrays["ids"]), dtype=np.int64) + (n << PLACE_BITS) for n, each in enumerate(opened)]
        )
        order = ids.argsort(kind="stable")
        ids, places = ids[order], places[order]
        is_last = np.append(ids[1:] != ids[:-1], True)[: len(ids)]
        removed = [each.arrays["removed"] for each in opened]
        ids, places = ids[is_last], places[is_last]
        gone = _gone(ids, places, removed)
        return ids[~gone], places[~gone]

    def _join_changed(self) -> None:
        """Writes new parts in the place of all that stand behind the base."""
        over = self._places.over
        gone = over.places == REMOVED
        self._parts[self._base :] = list(self._rewritten(over.places[~gone], over.ids[gone]))
        over = self._empty_over
        for number, name in enumerate(self._parts[self._base :], self._base):
            over = over.with_part(name, number, self._file(name))
        self._places = Places(self._file(self._index), over)

    def _join_unversioned(self) -> None:
        """The same in the middle of changes, which come faster than they are read: what they have overwritten goes."""
        known = set() if self.files is None else set(self.files.parts)
        joined = [name for name in self._parts[self._base :] if name not in known]
        self._join_changed()
        self._folder.remove(joined)
        self._open = {name: each for name, each in self._open.items() if name not in joined}

    def _rewritten(self, places: np.ndarray, removed: np.ndarray) -> Iterator[str]:
        """Writes the rows at these places into new parts, at least one, and ids whose rows have gone into the first."""
        places = np.sort(places)
        most = max(1, PART_BYTES // (self._empty.element_size() * self._dim + places.itemsize))
        for low in range(0, max(len(places), 1), most):
            some = places[low : low + most]
            yield self._folder.write_rows(self._name, self._rows_at(some, removed if low == 0 else removed[:0]))

    def _rows_at(self, places: np.ndarray, removed: np.ndarray) -> dict[str, torch.Tensor]:
        ids, values = [torch.empty(0, dtype=torch.int64)], [self._empty]
        numbers = places >> PLACE_BITS
        for number in np.unique(numbers):
            arrays = self._file(self._parts[number]).arrays
            rows = places[numbers == number] & _ROW
            ids.append(self._tensor(arrays["ids"][rows]))
            values.append(self._tensor(arrays["values"][rows]))
        return {"ids": torch.cat(ids), "values": torch.cat(values), "removed": torch.from_numpy(removed.copy())}

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor

    def _file(self, name: str) -> TensorFile:
        if name not in self._open:
            self._open[name] = TensorFile(Path(self._folder.path, name))
        return self._open[name]


def _gone(ids: np.ndarray, places: np.ndarray, removed: list[np.ndarray]) -> np.ndarray:
    """Which ids were removed by a part behind the one that has their row."""
    gone = np.zeros(len(ids), bool)
    for number, each in enumerate(removed):
        if len(each):
            gone |= np.isin(ids, each) & (places >> PLACE_BITS < number)
    return gone
