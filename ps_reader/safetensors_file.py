"""Tensors of a file in the format of safetensors, as arrays that share its pages."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any, Final

import numpy as np

from ps_reader.errors import ExportError

BF16: Final = "BF16"

_DTYPES: Final = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1", BF16: "<u2"},
}
"""Dtypes of the format in numpy. That of bfloat16 has the bits only."""

_MOST_HEADER: Final = 100 << 20


class TensorFile:
    """One file. It is not read before its arrays are, and stays readable after it was removed.

    Attributes:
        arrays: By name. They are read-only.
        dtypes: By name, as the format calls them.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            size = int.from_bytes(mapped[:8], "little")
            if not 0 < size <= min(_MOST_HEADER, len(mapped) - 8):
                raise ValueError("its header is longer than the file")
            header: dict[str, Any] = json.loads(mapped[8 : 8 + size])
            header.pop("__metadata__", None)
            self.dtypes: dict[str, str] = {name: each["dtype"] for name, each in header.items()}
            self.arrays = {name: _array(mapped, 8 + size, each) for name, each in header.items()}
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ExportError(f"{path} is damaged, or no file of tensors: {error!r}") from None


def _array(mapped: mmap.mmap, start: int, told: dict[str, Any]) -> np.ndarray:
    low, high = told["data_offsets"]
    dtype, shape = np.dtype(_DTYPES[told["dtype"]]), tuple(told["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    if not 0 <= low <= high <= len(mapped) - start or high - low != count * dtype.itemsize:
        raise ValueError("a tensor is outside of the file")
    return np.frombuffer(mapped, dtype, count, start + low).reshape(shape)


def as_numbers(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array that has numbers: of bfloat16, which numpy does not know, a copy in float32."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == BF16 else array
