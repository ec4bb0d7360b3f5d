"""An encoded tensor: the name of its codec, plain parameters, and a few tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ps_wire.errors import InvalidArgumentError

MOST_TENSORS: Final = 8
"""Tensors of one encoded tensor. Every codec here needs at most two, and two for coordinates."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """What a codec makes of one tensor. It is registered by value (`registry.py`).

    The parameters are names and plain values; for a codec of a program's own, what its `encode` returned. The tensors
    are in the order that the codec defines. A sparse tensor has coordinates, too, as the codec packs them.
    """

    codec: str
    parameters: dict[str, Any] = field(default_factory=dict)
    tensors: tuple[torch.Tensor, ...] = ()
    coordinates: tuple[torch.Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in it. Names, plain values and the description of each tensor come on top."""
        everything = (self.tensors, self.coordinates, self.parameters)
        return sum(each.numel() * each.itemsize for each in _tensors_in(everything))

    def to_value(self) -> tuple[str, dict[str, Any], list[torch.Tensor], list[torch.Tensor]]:
        """The same as plain values, which any message can carry."""
        return self.codec, self.parameters, list(self.tensors), list(self.coordinates)

    @classmethod
    def from_value(cls, value: Any) -> Encoded:
        """The encoded tensor that `to_value` made the value of. Another form is an `InvalidArgumentError`."""
        if not isinstance(value, (list, tuple)) or len(value) != 4:
            raise InvalidArgumentError("an encoded tensor is a codec, its parameters, tensors and coordinates")
        codec, parameters, tensors, coordinates = value
        if (
            not isinstance(codec, str)
            or not isinstance(parameters, dict)
            or any(not isinstance(key, str) for key in parameters)
        ):
            raise InvalidArgumentError("an encoded tensor begins with the name of a codec and a dict of parameters")
        for each in (tensors, coordinates):
            if not isinstance(each, (list, tuple)) or len(each) > MOST_TENSORS:
                raise InvalidArgumentError(f"an encoded tensor has lists of at most {MOST_TENSORS} tensors")
            if not all(isinstance(item, torch.Tensor) for item in each):
                raise InvalidArgumentError("an encoded tensor has something else among its tensors")
        return cls(codec, parameters, tuple(tensors), tuple(coordinates))


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item)
