"""Torch's dtypes and their numbers on the wire: a closed table, checked for completeness when imported."""

from __future__ import annotations

from typing import cast

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.values_pb2 import DType

TO_WIRE: dict[torch.dtype, DType] = {}
FROM_WIRE: dict[int, torch.dtype] = {}

for _name, _number in DType.items():
    # A torch older or newer than the protocol may lack a dtype, and then cannot make values of it.
    _dtype = getattr(torch, _name.removeprefix("DTYPE_").lower(), None)
    if _dtype is not None:
        TO_WIRE[_dtype] = cast("DType", _number)
        FROM_WIRE[_number] = _dtype


def to_wire(dtype: torch.dtype) -> DType:
    """Number of a dtype on the wire."""
    try:
        return TO_WIRE[dtype]
    except KeyError:
        raise InvalidArgumentError(f"{dtype} has no number in the protocol") from None


def from_wire(number: int) -> torch.dtype:
    """The dtype of a number on the wire."""
    try:
        return FROM_WIRE[number]
    except KeyError:
        raise InvalidArgumentError(f"dtype number {number} is unknown here") from None
