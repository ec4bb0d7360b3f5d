"""Reduces numbers, or tensors of one shape and dtype, to one, with enough precision; also structures of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import INT64

_INTEGERS: Final = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Kind(NamedTuple):
    """What values must have in common to be reduced together: shape and dtype of tensors; None for numbers."""

    shape: torch.Size | None = None
    dtype: torch.dtype | None = None

    def __str__(self) -> str:
        return "a number" if self.shape is None else f"a {self.dtype} tensor of shape {tuple(self.shape)}"


def kind_of(value: Any) -> Kind:
    """The kind of a value: that of its tensor, or that of all numbers."""
    return Kind(value.shape, value.dtype) if isinstance(value, torch.Tensor) else Kind()


def is_reducible(value: Any, op: str) -> bool:
    """Whether a value is a number (integers of 64 bits) or a dense tensor that an operation can reduce."""
    if not isinstance(value, torch.Tensor):
        return isinstance(value, float) or (isinstance(value, int) and value in INT64)
    if value.layout is not torch.strided or value.is_quantized:
        return False
    dtype = value.dtype
    if op in ("min", "max"):
        return dtype in _INTEGERS or (dtype.is_floating_point and dtype.itemsize >= 2)
    return dtype in _INTEGERS or dtype.is_floating_point or dtype.is_complex


def widened(value: Any) -> Any:
    """A copy of a tensor in a dtype in which sums keep their precision: int64 for integers and bools, float32 for
    floating-point numbers of less than 32 bits. Python numbers stay, and a bool becomes an int."""
    if not isinstance(value, torch.Tensor):
        return int(value) if isinstance(value, bool) else value
    return value.to(_wide(value.dtype), copy=True)


def wide_bytes(tensor: torch.Tensor) -> int:
    """The bytes of such a copy."""
    return tensor.numel() * _wide(tensor.dtype).itemsize


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype in _INTEGERS:
        return torch.int64
    if dtype is torch.complex32:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def _smaller(one: Any, other: Any) -> Any:
    if isinstance(one, torch.Tensor):
        return torch.minimum(one, other)
    return one if math.isnan(one) or one <= other else other


def _larger(one: Any, other: Any) -> Any:
    if isinstance(one, torch.Tensor):
        return torch.maximum(one, other)
    return one if math.isnan(one) or one >= other else other


_JOINED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "sum": operator.add,
    "mean": operator.add,
    "product": operator.mul,
    "min": _smaller,
    "max": _larger,
}


class Reducer:
    """Reduces values of one kind, in the order in which they come, by `sum`, `mean`, `product`, `min` or `max`. NaN
    spreads. `count` is how many values there were. Not safe from several threads."""

    def __init__(self, op: str) -> None:
        self.count = 0
        self.op = op
        self._join = _JOINED[op]
        self._total: Any = None

    def add(self, value: Any) -> None:
        """Adds a value of the same kind as all others."""
        if self.op not in ("min", "max"):
            value = widened(value)
        elif self._total is None and isinstance(value, torch.Tensor):
            value = value.clone()
        self._total = value if self._total is None else self._join(self._total, value)
        self.count += 1

    def merge(self, other: Reducer) -> None:
        """Adds the values of another one, of the same kind."""
        if other.count:
            self._total = other._total if self._total is None else self._join(self._total, other._total)
            self.count += other.count

    @property
    def result(self) -> Any:
        """The result. The mean of integer tensors is float64. A tensor is not changed later."""
        if self.op != "mean" or not self.count:
            return self._total
        if isinstance(self._total, torch.Tensor) and not (self._total.is_floating_point() or self._total.is_complex()):
            return self._total.double() / self.count
        return self._total / self.count


def reduced(values: Sequence[Any], op: str, place: str = "") -> Any:
    """The reduction of values, in the order of ranks: numbers, dense tensors, or lists, tuples and dicts of these.

    Raises `InvalidArgumentError`, which names two ranks and `place`, if structures, shapes or dtypes differ.
    """
    first = values[0]
    for rank, value in enumerate(values):
        if not _is_alike(first, value):
            raise InvalidArgumentError(
                f"the values{f' at {place}' if place else ''} do not fit together: rank 0 has {_described(first)}, and "
                f"rank {rank} {_described(value)}"
            )
    if isinstance(first, dict):
        return {key: reduced([value[key] for value in values], op, f"{place}[{key!r}]") for key in first}
    if isinstance(first, (list, tuple)):
        items = zip(*values, strict=True)
        return type(first)(reduced(each, op, f"{place}[{index}]") for index, each in enumerate(items))
    reducer = Reducer(op)
    for value in values:
        reducer.add(value)
    return reducer.result


def _is_alike(first: Any, value: Any) -> bool:
    if isinstance(first, dict):
        return isinstance(value, dict) and value.keys() == first.keys()
    if isinstance(first, (list, tuple)):
        return type(value) is type(first) and len(value) == len(first)
    return isinstance(value, (torch.Tensor, int, float)) and kind_of(value) == kind_of(first)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor) or type(value) in (int, float, bool):
        return str(kind_of(value))
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(sorted(map(repr, value)))[:200]}"
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__
