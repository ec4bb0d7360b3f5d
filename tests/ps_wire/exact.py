"""Compares types, structure and bits."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch


def bits_of(tensor: torch.Tensor) -> bytes:
    """The bytes of a dense tensor's elements, row by row."""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if not tensor.numel():
        return b""
    if tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)  # torch cannot copy every dtype, but bytes
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).numpy().tobytes()


def same_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.shape, one.layout) != (other.dtype, other.shape, other.layout):
        return False
    if one.is_sparse:
        halves = (one._indices(), other._indices()), (one._values(), other._values())
        return one.is_coalesced() == other.is_coalesced() and all(same_tensors(*half) for half in halves)
    if one.is_quantized and (one.q_scale(), one.q_zero_point()) != (other.q_scale(), other.q_zero_point()):
        return False
    return bits_of(one) == bits_of(other)


def same(one: Any, other: Any) -> bool:
    """Whether two values cannot be told apart: 1 is not True, 0.0 is not -0.0, a list is not a tuple."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and same_tensors(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return _same_items(one, other)
    if isinstance(one, dict):
        return _same_items(list(one.items()), list(other.items()))
    if isinstance(one, slice):
        return _same_items((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return bool(one == other)


def _same_items(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(same, one, other))
