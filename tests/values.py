"""Comparing values that may hold tensors."""

from __future__ import annotations

import math
from typing import Any

import torch


def same(one: Any, other: Any) -> bool:
    """Whether two values have the same types, shapes and numbers all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensors(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, float):
        return (one == other and math.copysign(1, one) == math.copysign(1, other)) or (one != one and other != other)
    return bool(one == other)


def _same_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.shape, one.layout) != (other.dtype, other.shape, other.layout):
        return False
    if one.is_sparse:
        return _same_tensors(one._indices(), other._indices()) and _same_tensors(one._values(), other._values())
    if not one.numel():
        return True
    flat, other_flat = one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8)
    return torch.equal(flat, other_flat)
