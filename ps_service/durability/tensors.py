"""Tensors of a checkpoint: safetensors files, in parts, each tensor under a name of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import MIB

PART_BYTES: Final = 256 * MIB
"""A part is written once it has so many bytes: it has to fit into memory beside the owner's state."""

PART_TENSORS: Final = 10_000
"""Or so many tensors: the format limits the list of their names."""

_NATIVE: Final = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
"""Dtypes that every reader of the format knows."""


def is_native(tensor: torch.Tensor) -> bool:
    """Whether a tensor can stand in such a file as what it is."""
    return tensor.layout == torch.strided and tensor.dtype in _NATIVE


class TensorWriter:
    """Writes tensors into parts `tensors-00001.safetensors`, `tensors-00002.safetensors` …

    Args:
        folder: Where.
        part_bytes: How large a part grows before it is written.
    """

    def __init__(self, folder: Path, part_bytes: int = PART_BYTES) -> None:
        self._folder = folder
        self._part_bytes = part_bytes
        self._part: dict[str, torch.Tensor] = {}
        self._bytes = 0
        self._parts = 0
        self._names: set[str] = set()
        # How often each name was wanted.
        self._wanted: Counter[str] = Counter()

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """Copies a native tensor; returns the name it has in the file, with a number behind it if that one was taken.

        Raises:
            OSError: A part cannot be written.
        """
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
        """Writes what no part has yet.

        Raises:
            OSError: It cannot be written.
        """
        if self._part:
            self._parts += 1
            path = self._folder / f"tensors-{self._parts:05}.safetensors"
            try:
                save_file(self._part, path)
            except Exception as error:  # the library's own errors are no OSErrors
                raise OSError(f"{path.name}: {error}") from error
            self._part, self._bytes = {}, 0


class TensorReader:
    """Finds tensors in all parts of a folder."""

    def __init__(self, folder: Path) -> None:
        self._files = [safe_open(path, "pt") for path in sorted(folder.glob("tensors-*.safetensors"))]
        self._places: dict[str, Any] = {name: file for file in self._files for name in file.keys()}  # type: ignore[no-untyped-call]  # noqa: SIM118

    def get(self, name: str) -> torch.Tensor:
        """The tensor of a name, in memory that belongs to the file.

        Raises:
            InvalidArgumentError: There is none.
        """
        try:
            file = self._places[name]
        except KeyError:
            raise InvalidArgumentError(f"the checkpoint has no tensor {name!r}") from None
        tensor: torch.Tensor = file.get_tensor(name)
        return tensor
