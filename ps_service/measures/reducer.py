"""Reduces numbers, or tensors of one shape and dtype, to one: sums and means, kept with enough precision."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

_WIDER = {
    torch.complex32: torch.complex64,
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32), torch.int64),
}


class Kind(NamedTuple):
    """What values must have in common to be reduced together.

    Attributes:
        shape: The shape of the tensors; None for numbers.
        dtype: Their dtype; None for numbers.
    """

    shape: torch.Size | None = None
    dtype: torch.dtype | None = None

    def __str__(self) -> str:
        return "a number" if self.shape is None else f"a {self.dtype} tensor of shape {tuple(self.shape)}"


def kind_of(value: Any) -> Kind:
    """The kind of a value: that of its tensor, or that of all numbers."""
    return Kind(value.shape, value.dtype) if isinstance(value, torch.Tensor) else Kind()


def widened(value: Any) -> Any:
    """A copy of a tensor in a dtype in which sums keep their precision: int64 for integers and bools, float32 for
    floating-point numbers of less than 32 bits. Python numbers stay, and a bool becomes an int."""
    if not isinstance(value, torch.Tensor):
        return int(value) if isinstance(value, bool) else value
    dtype = _WIDER.get(value.dtype, value.dtype)
    if dtype.is_floating_point and dtype.itemsize < 4:
        dtype = torch.float32
    return value.to(dtype, copy=True)


class Reducer:
    """The sum or mean of values of one kind. Not safe from several threads.

    Args:
        is_mean: Whether the result is the mean.

    Attributes:
        is_mean: As the argument.
        count: How many values there were.
    """

    def __init__(self, is_mean: bool) -> None:
        self.count = 0
        self.is_mean = is_mean
        self._total: Any = None

    def add(self, value: Any) -> None:
        """Adds a value of the same kind as all others."""
        wide = widened(value)
        self._total = wide if self._total is None else self._total + wide
        self.count += 1

    def merge(self, other: Reducer) -> None:
        """Adds the values of another one, of the same kind."""
        if other.count:
            self._total = other._total if self._total is None else self._total + other._total
            self.count += other.count

    @property
    def result(self) -> Any:
        """The sum or mean. The mean of integer tensors is float64. The tensor is not changed later."""
        if not self.is_mean or not self.count:
            return self._total
        if isinstance(self._total, torch.Tensor) and not (self._total.is_floating_point() or self._total.is_complex()):
            return self._total.double() / self.count
        return self._total / self.count
