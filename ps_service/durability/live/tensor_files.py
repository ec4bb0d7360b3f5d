"""The safetensors files of a checkpoint that is written piece by piece, each of which is on the disk before the next.

So the system never has much to write at once, which would hold up the log.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from ps_wire.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ps_service.durability.log.disk import Disk

FILE_BYTES: Final = 16 * MIB
"""Bytes of small tensors after which a file is written: copies of them are in memory meanwhile."""

_FILE_TENSORS: Final = 10_000
"""Tensors after which a file is written: readers limit the header that lists them."""

_SYNC_BYTES: Final = 32 * MIB
"""Bytes of a file after which what was written is synced."""

_ALIGNMENT: Final = 8

_DTYPES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Names:
    """The names of tensors in a checkpoint: each is there once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._wanted: Counter[str] = Counter()

    def unique(self, name: str) -> str:
        """The name, with a number behind it if it is taken."""
        found = name
        while found in self._taken:
            self._wanted[name] += 1
            found = f"{name}~{self._wanted[name] + 1}"
        self._taken.add(found)
        return found

    def release(self, names: Iterable[str]) -> None:
        """Gives names back."""
        self._taken.difference_update(names)


class Described(NamedTuple):
    """A tensor of a file."""

    name: str
    dtype: torch.dtype
    shape: Sequence[int]

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorFile:
    """A safetensors file whose tensors are written in any order, whole or in parts. All methods raise `OSError`."""

    def __init__(self, path: Path, tensors: Iterable[Described], disk: Disk) -> None:
        self._disk = disk
        self._unsynced = 0
        self._places: dict[str, int] = {}
        fields, end = {}, 0
        # The largest elements first, so that all are aligned.
        for each in sorted(tensors, key=lambda each: -each.dtype.itemsize):
            begin, end = end, end + each.nbytes
            self._places[each.name] = begin
            fields[each.name] = {"dtype": _DTYPES[each.dtype], "shape": [*each.shape], "data_offsets": [begin, end]}
        header = json.dumps(fields, separators=(",", ":")).encode()
        header += b" " * (-len(header) % _ALIGNMENT)
        self._begin = 8 + len(header)
        self._descriptor = disk.create(path, self._begin + end)
        disk.write(self._descriptor, [struct.pack("<Q", len(header)), header], 0)

    def write(self, name: str, tensor: torch.Tensor, offset: int = 0) -> None:
        """Writes a contiguous tensor on the CPU, as the elements from that byte of the one of that name on."""
        if tensor.numel():
            content = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
            self._disk.write(self._descriptor, [content], self._begin + self._places[name] + offset)
            self._unsynced += len(content)
            if self._unsynced >= _SYNC_BYTES:
                self._sync()

    def close(self) -> None:
        """Waits until all is on the disk."""
        try:
            self._sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Closes the file as it is."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._disk.close(descriptor)

    def _sync(self) -> None:
        self._disk.sync(self._descriptor)
        self._unsynced = 0


class TensorFiles:
    """The files of tensors in a folder. `add` is as that of `TensorWriter`: it copies small tensors, and writes others
    from where they are, so they must not change meanwhile."""

    def __init__(self, folder: Path, disk: Disk, names: Names) -> None:
        self.folder = folder
        self.names = names
        self._disk = disk
        self._numbers = itertools.count(1)
        self._small: list[tuple[str, torch.Tensor]] = []
        self._nbytes = 0

    def create(self, tensors: Iterable[Described]) -> tuple[str, TensorFile]:
        """A new file for some tensors, and its name."""
        name = self.new_name()
        return name, TensorFile(self.folder / name, tensors, self._disk)

    def new_name(self) -> str:
        """A name of a file that is not there."""
        return f"tensors-{next(self._numbers):05}.safetensors"

    def write(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> str:
        """Writes contiguous tensors on the CPU, under their names, into a file of their own; returns its name."""
        name, file = self.create([Described(each, tensor.dtype, tensor.shape) for each, tensor in tensors])
        try:
            for each, tensor in tensors:
                file.write(each, tensor)
            file.close()
        finally:
            file.abandon()
        return name

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """Adds a native tensor. Returns its name in the file."""
        unique = self.names.unique(name)
        if tensor.nbytes >= FILE_BYTES and tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg():
            self.write([(unique, tensor)])
            return unique
        self._small.append((unique, tensor.detach().to("cpu", copy=True).resolve_neg().contiguous()))
        self._nbytes += tensor.nbytes
        if self._nbytes >= FILE_BYTES or len(self._small) >= _FILE_TENSORS:
            self.flush()
        return unique

    def flush(self) -> str:
        """Writes what was added and is in no file yet; returns the name of the file, empty if there was nothing."""
        small, self._small, self._nbytes = self._small, [], 0
        return self.write(small) if small else ""


class Sink:
    """Takes tensors for one file, without a copy. `add` is as that of `TensorWriter`."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.tensors: list[tuple[str, torch.Tensor]] = []

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """Adds a native tensor. Returns its name in the file."""
        unique = self._names.unique(name)
        self.tensors.append((unique, tensor.detach()))
        return unique
