"""Zstd: the bytes of a tensor, compressed without loss."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from ps_wire.codec import tensors
from ps_wire.compression import checks
from ps_wire.compression.codec import Codec, State, fitting_coordinates, index_dtype
from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_whole


@dataclass(frozen=True)
class Zstd(Codec):
    """Lossless: the same bits arrive, NaN and infinity among them. Any dtype that is not quantized, dense or sparse.

    It pays off for integers, masks and the coordinates of sparse tensors, which are sent as differences; the bits of
    trained floats hardly get smaller. A frame says its decompressed size, which must be that of the receiver's tensor,
    and has a checksum.

    Source: Collet and Kucherawy, "Zstandard Compression and the 'application/zstd' Media Type", RFC 8878, 2021.

    Args:
        level: From 1 (fast) to 22 (small).

    Raises:
        InvalidArgumentError: `level` is not from 1 to 22, or the package zstandard is not installed.
    """

    level: int = 3

    name = "zstd"
    takes_sparse = True
    dtypes = frozenset()

    def __post_init__(self) -> None:
        check_whole("level", self.level, 1, 22)
        _library()

    @property
    def feedback(self) -> bool:
        """Nothing is left out."""
        return False

    def _encode(self, values: torch.Tensor, state: State) -> Sequence[torch.Tensor]:
        return (self._compressed(values),)

    def _decode(self, parts: Sequence[torch.Tensor], shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        checks.number_of(parts, 1, self.name)
        return _decompressed(parts[0], shape.numel(), dtype).view(shape)

    def _encode_coordinates(self, indices: torch.Tensor, largest: int) -> Sequence[torch.Tensor]:
        steps = indices.diff(dim=1, prepend=torch.zeros(len(indices), 1, dtype=torch.int64, device="cpu"))
        return torch.tensor(indices.shape, device="cpu"), self._compressed(steps.to(index_dtype(largest)))

    def _decode_coordinates(self, parts: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
        checks.number_of(parts, 2, self.name)
        rows, count = checks.flat(parts[0], torch.int64, 2, "the number of coordinates").tolist()
        fitting_coordinates(rows, count, shape)
        steps = _decompressed(parts[1], rows * count, index_dtype(max(shape, default=0)))
        return steps.view(rows, count).cumsum(1, dtype=torch.int64)

    def _compressed(self, values: torch.Tensor) -> torch.Tensor:
        data = tensors.bytes_of(tensors.plain(values))
        packed = _library().ZstdCompressor(level=self.level, write_checksum=True).compress(data)
        return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def _decompressed(packed: torch.Tensor, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector of that many elements."""
    zstandard, expected = _library(), numel * dtype.itemsize
    data = checks.flat(packed, torch.uint8, packed.numel(), "a frame of zstd").numpy()
    try:
        found = zstandard.get_frame_parameters(data)
        if found.content_size != expected or found.dict_id:
            raise InvalidArgumentError(f"a frame of zstd holds {found.content_size} bytes instead of {expected}")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=expected, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidArgumentError(f"not a frame of zstd: {error}") from None
    if len(raw) != expected:
        raise InvalidArgumentError(f"a frame of zstd held {len(raw)} bytes instead of {expected}")
    result = torch.empty(numel, dtype=dtype, device="cpu")
    if numel:
        held = result.view(torch.uint8)
        held.numpy()[:] = np.frombuffer(raw, np.uint8)
        if dtype is torch.bool and held.max().item() > 1:
            raise InvalidArgumentError("a bool is neither 0 nor 1")
    return result


@cache
def _library() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        raise InvalidArgumentError(
            "the codec zstd needs the package zstandard: pip install 'torch-parameter-server[compression]'"
        ) from None
