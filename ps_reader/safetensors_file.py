"""Tensors of a file in the format of safetensors, as arrays that share its pages."""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from pathlib import Path
from typing import Any, Final

import numpy as np

from ps_reader.errors import ExportError

BF16: Final = "BF16"

_DTYPES: Final = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1", "C64": "<c8", BF16: "<u2"},
}
"""Dtypes of the format in numpy. That of bfloat16 has the bits only."""

_MOST_HEADER: Final = 100 << 20
_MAPPED_BYTES: Final = 1 << 20
"""Files of fewer bytes are read as a whole."""


class TensorFile:
    """One file. Small ones are read, and others are mapped: they are not read before their arrays are, and stay
    readable after they were removed.

    Attributes:
        arrays: By name. They are read-only. Those of a dtype that numpy does not know, such as float8, are left out.
        dtypes: By name, as the format calls them; also of those that are left out.
    """

    def __init__(self, path: Path) -> None:
        try:
            held = _held(path)
            size = int.from_bytes(held[:8], "little")
            if not 0 < size <= min(_MOST_HEADER, len(held) - 8):
                raise ValueError("its header is longer than the file")
            header: dict[str, Any] = json.loads(bytes(held[8 : 8 + size]))
            header.pop("__metadata__", None)
            self.dtypes: dict[str, str] = {name: each["dtype"] for name, each in header.items()}
            known = {name: each for name, each in header.items() if each["dtype"] in _DTYPES}
            self.arrays = {name: _array(held, 8 + size, each) for name, each in known.items()}
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ExportError(f"{path} cannot be read: {error}") from None
        except Exception as error:  # a damaged header may be anything
            raise ExportError(f"{path} is damaged, or no file of tensors: {error!r}") from None


def _held(path: Path) -> memoryview:
    """The bytes of a regular file. A mapped file takes a descriptor as long as it is used."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        told = os.fstat(descriptor)
        if not stat.S_ISREG(told.st_mode):
            raise ValueError("it is no regular file")
        if told.st_size < _MAPPED_BYTES:
            return memoryview(file.read())
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))


def _array(held: memoryview, start: int, told: dict[str, Any]) -> np.ndarray:
    low, high = told["data_offsets"]
    dtype, shape = np.dtype(_DTYPES[told["dtype"]]), tuple(told["shape"])
    count = math.prod(shape)
    if not 0 <= low <= high <= len(held) - start or high - low != count * dtype.itemsize:
        raise ValueError("a tensor is outside of the file")
    return np.frombuffer(held, dtype, count, start + low).reshape(shape)


def as_numbers(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array that has numbers: of bfloat16, which numpy does not know, a copy in float32."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == BF16 else array
