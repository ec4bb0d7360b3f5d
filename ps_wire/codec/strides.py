"""Tensors whose elements are not in row-major order in memory: how they are sent, and which strides are accepted.

Their elements are sent in the order in which they lie in memory, and the strides beside them. Elements that share
memory, as those of an expanded tensor do, are sent one by one in row-major order, and so are tensors with large gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch

    from ps_wire.v1 import values_pb2

MOST_TIMES: Final = 2
"""Tensors keep gaps in memory if they take at most this many times the memory of their elements,"""

SMALL_BYTES: Final = 8 * 1024
"""or if they take no more than this, gaps included. In torch's rpc, too, these tensors keep their strides."""

MOST_GAPPY_DIMENSIONS: Final = 32


def in_memory_order(tensor: torch.Tensor, message: values_pb2.Tensor, may_have_gaps: bool) -> torch.Tensor:
    """A view of a strided tensor whose dimensions are in the order of memory; the message gets its strides. If the
    receiver is not to keep them, it is the tensor itself, to be sent row by row. The tensor has elements, and is not
    row-major. `may_have_gaps` says whether the receiver can make one of that dtype with gaps."""
    count = tensor.numel()
    strides = [
        stride if size > 1 else min(stride, count) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    order = order_of(strides)
    span = _span(tensor.shape, strides, order)
    if span is None or not (
        span == count or (may_have_gaps and _keeps_gaps(tensor.dim(), span, count, tensor.itemsize))
    ):
        return tensor
    message.strides.extend(strides)
    return tensor.permute(order)


def has_kept_gaps(tensor: torch.Tensor) -> bool:
    """Whether a tensor has gaps in memory that a receiver would keep, and a clone would not."""
    span = _span(tensor.shape, tensor.stride(), order_of(tensor.stride()))
    count = tensor.numel()
    return span is not None and span > count > 0 and _keeps_gaps(tensor.dim(), span, count, tensor.itemsize)


def order_of(strides: Sequence[int]) -> list[int]:
    """The dimensions, from the largest stride to the smallest."""
    return sorted(range(len(strides)), key=strides.__getitem__, reverse=True)


def checked_span(shape: Sequence[int], strides: Sequence[int], count: int, itemsize: int, may_have_gaps: bool) -> int:
    """The number of elements between the first and the last element of a tensor in memory, both included. The shape has
    no 0. Strides that no sender would send, because elements would share memory or gaps are too large, are an
    `InvalidArgumentError`."""
    if len(strides) != len(shape) or min(strides, default=0) < 0:
        raise InvalidArgumentError(f"a tensor of shape {list(shape)} claims the strides {list(strides)}")
    if any(stride > count for size, stride in zip(shape, strides, strict=True) if size == 1):
        raise InvalidArgumentError(f"a tensor of {count} elements claims the strides {list(strides)}")
    span = _span(shape, strides, order_of(strides))
    if span is None:
        raise InvalidArgumentError(
            f"elements of a tensor of shape {list(shape)} and strides {list(strides)} share memory"
        )
    if span != count and not (may_have_gaps and _keeps_gaps(len(shape), span, count, itemsize)):
        raise InvalidArgumentError(
            f"a tensor of {count} elements claims the strides {list(strides)}, with gaps in memory"
        )
    return span


def _span(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> int | None:
    """The elements from the first to the last one in memory; None if elements share memory."""
    span = 1
    for place in reversed(order):
        if shape[place] > 1:
            if strides[place] < span:
                return None
            span += (shape[place] - 1) * strides[place]
    return span


def _keeps_gaps(dimensions: int, span: int, count: int, itemsize: int) -> bool:
    return dimensions <= MOST_GAPPY_DIMENSIONS and (span <= MOST_TIMES * count or span * itemsize <= SMALL_BYTES)
