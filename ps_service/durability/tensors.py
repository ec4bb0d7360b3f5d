"""The tensors of a checkpoint, in several safetensors files, each under a unique name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import MIB

PART_BYTES: Final = 256 * MIB
"""Bytes after which a part is written: it has to fit into memory beside the owner's state."""

PART_TENSORS: Final = 10_000
"""Tensors after which a part is written: the format limits the header that lists them."""

_NATIVE: Final = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
"""Dtypes that every reader of the format supports."""


def is_native(tensor: torch.Tensor) -> bool:
    """Whether a safetensors file can hold a tensor in its own dtype and layout."""
    return tensor.layout == torch.strided and tensor.dtype in _NATIVE


class TensorWriter:
    """Writes tensors into parts of about `part_bytes`, `tensors-00001.safetensors`, `tensors-00002.safetensors` …"""

    def __init__(self, folder: Path, part_bytes: int = PART_BYTES) -> None:
        self._folder = folder
        self._part_bytes = part_bytes
        self._part: dict[str, torch.Tensor] = {}
        self._bytes = 0
        self._parts = 0
        self._names: set[str] = set()
        # How often each name was requested.
        self._wanted: Counter[str] = Counter()

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """Adds a copy of a native tensor. Returns its name in the file, with a number behind one that was taken."""
        unique = name
        while unique in self._names:
            self._wanted[name] += 1
            unique = f"{name}~{self._wanted[name] + 1}"
        self._names.add(unique)
        self._part[unique] = tensor.detach().to("cpu", copy=True).resolve_neg().contiguous()
        self._bytes += tensor.numel() * tensor.element_size()
        if self._bytes >= self._part_bytes or len(self._part) >= PART_TENSORS:
            self.flush()
        return unique

    def flush(self) -> None:
        """Writes the tensors that no part holds yet. Raises `OSError` if it cannot."""
        if self._part:
            self._parts += 1
            path = self._folder / f"tensors-{self._parts:05}.safetensors"
            try:
                save_file(self._part, path)
            except Exception as error:  # the library's own errors are no OSErrors
                raise OSError(f"{path.name}: {error}") from error
            self._part, self._bytes = {}, 0


class TensorReader:
    """Reads tensors from the parts of a checkpoint. What is in the folder besides its files is not opened."""

    def __init__(self, folder: Path, files: Iterable[str]) -> None:
        parts = sorted(name for name in files if fnmatchcase(name, "tensors-*.safetensors"))
        self._files = [safe_open(folder / name, "pt") for name in parts]
        self._places: dict[str, Any] = {name: file for file in self._files for name in file.keys()}  # type: ignore[no-untyped-call]  # noqa: SIM118

    def get(self, name: str) -> torch.Tensor:
        """The tensor of that name, in memory mapped from the file. Raises `InvalidArgumentError` if no part has it."""
        try:
            file = self._places[name]
        except KeyError:
            raise InvalidArgumentError(f"the checkpoint has no tensor {name!r}") from None
        tensor: torch.Tensor = file.get_tensor(name)
        return tensor
