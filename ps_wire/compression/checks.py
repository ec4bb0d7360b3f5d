"""Checks of parameters of codecs and of the tensors of a message, before anything is allocated for them. What does not
fit is an `InvalidArgumentError`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError
from ps_wire.shown import shown


def fraction(value: Any) -> None:
    """Checks that a parameter is above 0 and at most 1."""
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise InvalidArgumentError(f"the fraction to send is above 0 and at most 1, not {shown(value)}")


def share(part: float, numel: int) -> int:
    """The number of elements that a fraction of `numel` is, rounded up. Both sides compute it."""
    return min(numel, math.ceil(part * numel))


def number_of(tensors: Sequence[torch.Tensor], expected: int, codec: str) -> None:
    """Checks how many tensors a message has."""
    if len(tensors) != expected:
        raise InvalidArgumentError(f"{codec} needs {expected} tensors for this parameter, {len(tensors)} arrived")


def flat(tensor: torch.Tensor, dtype: torch.dtype, length: int, what: str) -> torch.Tensor:
    """A tensor that arrived, if it is a dense vector of this dtype and length. `what` says in the error what it is."""
    if tensor.layout is not torch.strided or tensor.dtype is not dtype or tensor.shape != (length,):
        found = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise InvalidArgumentError(f"{what} must be {length} elements of {dtype}, but {found} arrived")
    return tensor.detach().contiguous()


def finite(tensor: torch.Tensor) -> bool:
    """Whether all elements of a dense tensor of floats are finite. It allocates nothing."""
    if not tensor.numel():
        return True
    low, high = torch.aminmax(tensor)
    return math.isfinite(low.item()) and math.isfinite(high.item())


def finite_values(values: torch.Tensor) -> None:
    """Checks values that arrived from a codec that sends finite ones only."""
    if not finite(values):
        raise InvalidArgumentError("an encoded value is not finite")


def refuse_non_finite(ok: bool, codec: str) -> None:
    """Raises `NonFiniteGradientError` if what is to be encoded is not ok: the codec has no form for it."""
    if not ok:
        raise NonFiniteGradientError(f"{codec} has no form for NaN, infinity, or sums that overflow: nothing was sent")
