"""The base of all codecs: dense and sparse tensors to an `Encoded`, which has a few tensors, and back."""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final

import torch
from torch.utils._pytree import tree_leaves

from ps_wire.compression import checks
from ps_wire.errors import InvalidArgumentError

FLOATS: Final = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))
"""The dtypes that lossy codecs take."""

State = MutableMapping[str, Any]
"""What a codec keeps of one parameter from one message to the next: plain values and tensors."""

LOCAL: Final = {"wire": False}
"""Metadata of a field that is no parameter in messages, because only the sender uses it, or it is the name."""

MOST_TENSORS: Final = 8
"""Tensors of one encoded tensor. Every codec here needs at most two, and two for coordinates."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """What a codec makes of one tensor; it travels by value (`registry.py`). The parameters are plain values, or for a
    codec of a program's own what its `encode` returned. A sparse tensor has coordinates, as the codec packs them."""

    codec: str
    parameters: dict[str, Any] = field(default_factory=dict)
    tensors: tuple[torch.Tensor, ...] = ()
    coordinates: tuple[torch.Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in it. Names, plain values and the description of each tensor come on top."""
        leaves = tree_leaves((self.tensors, self.coordinates, self.parameters))
        return sum(each.numel() * each.itemsize for each in leaves if isinstance(each, torch.Tensor))

    def to_value(self) -> tuple[str, dict[str, Any], list[torch.Tensor], list[torch.Tensor]]:
        """The same as plain values, which any message can carry."""
        return self.codec, self.parameters, list(self.tensors), list(self.coordinates)

    @classmethod
    def from_value(cls, value: Any) -> Encoded:
        """The encoded tensor that `to_value` made the value of. Another form is an `InvalidArgumentError`."""
        if not isinstance(value, (list, tuple)) or len(value) != 4:
            raise InvalidArgumentError("an encoded tensor is a codec, its parameters, tensors and coordinates")
        codec, parameters, tensors, coordinates = value
        if not is_description(codec, parameters):
            raise InvalidArgumentError("an encoded tensor begins with the name of a codec and a dict of parameters")
        for each in (tensors, coordinates):
            if not isinstance(each, (list, tuple)) or len(each) > MOST_TENSORS:
                raise InvalidArgumentError(f"an encoded tensor has lists of at most {MOST_TENSORS} tensors")
            if not all(isinstance(item, torch.Tensor) for item in each):
                raise InvalidArgumentError("an encoded tensor has something else among its tensors")
        return cls(codec, parameters, tuple(tensors), tuple(coordinates))


def is_description(name: object, parameters: object) -> bool:
    """Whether what arrived may be the name of a codec and its parameters."""
    return isinstance(name, str) and isinstance(parameters, dict) and all(isinstance(key, str) for key in parameters)


class Codec:
    """Encodes tensors of its `dtypes`, or if there are none, of all that can be sent, and decodes them. Subclasses are
    frozen dataclasses: comparable, hashable and printable."""

    name: str
    takes_sparse: ClassVar[bool] = False
    dtypes: ClassVar[frozenset[torch.dtype]] = FLOATS

    @property
    def feedback(self) -> bool:
        """Whether error feedback makes sense: it leaves something out, and what it leaves out is no larger than x."""
        return True

    def parameters(self) -> dict[str, Any]:
        """What a message says of it besides its name."""
        return {name: getattr(self, name) for name in sent_fields(self)}

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether it can encode a tensor of this dtype and layout."""
        if tensor.is_meta or tensor.is_quantized or (self.dtypes and tensor.dtype not in self.dtypes):
            return False
        return tensor.layout is torch.strided or (self.takes_sparse and tensor.layout is torch.sparse_coo)

    def encode(self, tensor: torch.Tensor, state: State | None = None) -> Encoded:
        """Encodes a tensor on any device; the result shares no memory with it. The state is changed in place, but not
        if the tensor holds NaN or infinity for which the codec has no form (`NonFiniteGradientError`). A dtype or
        layout that it does not take is an `InvalidArgumentError`."""
        if not self.takes(tensor):
            raise InvalidArgumentError(f"{self} does not take {tensor.dtype} tensors of layout {tensor.layout}")
        state = {} if state is None else state
        tensor = tensor.detach()
        if tensor.layout is torch.strided:
            return Encoded(self.name, self.parameters(), tuple(self._encode(tensor, state)))
        try:
            tensor = tensor.coalesce()
        except RuntimeError as error:
            raise InvalidArgumentError(f"torch cannot coalesce this tensor: {error}") from None
        coordinates = tuple(self._encode_coordinates(tensor.indices().cpu(), max(tensor.shape, default=0)))
        return Encoded(self.name, self.parameters(), tuple(self._encode(tensor.values(), state)), coordinates)

    def decode(self, encoded: Encoded, like: torch.Tensor) -> torch.Tensor:
        """Decodes what `encode` made of a tensor of the shape and dtype of `like`, on the device of that; dense results
        are contiguous. What is decoded may come from anywhere: all lengths are checked before anything of that size is
        allocated, and what no `encode` makes is an `InvalidArgumentError`."""
        if self.dtypes and like.dtype not in self.dtypes:
            raise InvalidArgumentError(f"{self} does not decode {like.dtype} tensors")
        if not encoded.coordinates:
            return self._decode(encoded.tensors, like.shape, like.dtype).to(like.device)
        if not self.takes_sparse:
            raise InvalidArgumentError(f"{self} has no sparse tensors")
        indices = self._decode_coordinates(encoded.coordinates, like.shape)
        shape = torch.Size((indices.shape[1], *like.shape[indices.shape[0] :]))
        values = self._decode(encoded.tensors, shape, like.dtype)
        try:
            return torch.sparse_coo_tensor(
                indices, values, like.shape, is_coalesced=True, check_invariants=True, device=like.device
            )
        except RuntimeError as error:
            raise InvalidArgumentError(f"not valid coordinates: {error}") from None

    def take_out(self, encoded: Encoded, residual: torch.Tensor, like: torch.Tensor) -> None:
        """Subtracts in place what the receiver will decode of a dense tensor that was like `like`. The residual is
        contiguous, of the same shape. Its dtype may be wider."""
        residual.sub_(self.decode(encoded, like))

    def _encode(self, values: torch.Tensor, state: State) -> Sequence[torch.Tensor]:
        """The tensors for dense values of any shape, strides and device. They are vectors that share no memory."""
        raise NotImplementedError

    def _decode(self, parts: Sequence[torch.Tensor], shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """The dense values of that shape and dtype."""
        raise NotImplementedError

    def _encode_coordinates(self, indices: torch.Tensor, largest: int) -> Sequence[torch.Tensor]:
        """The tensors for int64 coordinates on the CPU: a row for each sparse dimension, in ascending order."""
        return (indices.to(index_dtype(largest), copy=True),)

    def _decode_coordinates(self, parts: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
        """The coordinates. Their range and order are checked later, by torch."""
        checks.number_of(parts, 1, self.name)
        (found,) = parts
        dtype = index_dtype(max(shape, default=0))
        if found.layout is not torch.strided or found.dtype is not dtype or found.dim() != 2:
            raise InvalidArgumentError(f"the coordinates of a sparse tensor are {dtype} of two dimensions")
        rows, count = found.shape
        fitting_coordinates(rows, count, shape)
        return found.detach().to(torch.int64)


def sent_fields(codec: Any) -> list[str]:
    """The names of the fields of a codec, or of its class, that messages have."""
    return [each.name for each in fields(codec) if each.metadata.get("wire", True)]


def fitting_coordinates(rows: int, count: int, shape: Sequence[int]) -> None:
    """Checks the number of coordinates: each element of the sparse dimensions has at most one."""
    if not 0 <= rows <= len(shape) or not 0 <= count <= math.prod(shape[:rows]):
        raise InvalidArgumentError(f"{count} coordinates of {rows} dimensions do not fit into shape {tuple(shape)}")


def index_dtype(size: int) -> torch.dtype:
    """The dtype of indices below `size`: int32 where they fit."""
    return torch.int32 if size <= 1 << 31 else torch.int64


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which codecs compute: float64 for float64, and float32 for all others."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def vector(values: torch.Tensor) -> torch.Tensor:
    """The values as a contiguous vector on the CPU. It may share their memory."""
    return values.cpu().reshape(-1).contiguous()
