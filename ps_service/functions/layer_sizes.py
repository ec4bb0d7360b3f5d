"""Sizes of the results of layers: convolutions, pooling, interpolation, attention, bags."""

# mypy: disable-error-code=no-any-return
# The arguments that torch's dispatcher passes have no types.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ps_service.functions.sizes import broadcast
from ps_wire.errors import InvalidArgumentError

MAX_STEP: Final = 1024
"""Largest stride, dilation and padding of convolutions and windows; torch's own arithmetic overflows far above it."""


def bags(table: Tensor, indices: Tensor, offsets: Tensor, *_: Any, **__: Any) -> int:
    """`_embedding_bag`: a row for each bag, and integers for each index."""
    return offsets.numel() * math.prod(table.shape[1:]) * table.element_size() + 16 * indices.numel()


def padded(own: Tensor, pad: Sequence[int], *_: Any, **__: Any) -> int:
    """Padding or cropping of the last dimensions."""
    shape = list(own.shape)
    for place in range(0, len(pad) - 1, 2):
        dimension = own.dim() - 1 - place // 2
        if dimension >= 0:
            shape[dimension] = max(0, shape[dimension] + pad[place] + pad[place + 1])
    return math.prod(shape) * own.element_size()


def resized(own: Tensor, size: Sequence[int] | None, *_: Any, **__: Any) -> int:
    """Pooling and interpolation to a size given among the arguments, with indices. A length of 0 makes the result
    empty, but torch still loops over the other dimensions, so it counts as 1."""
    return math.prod((*own.shape[:2], *(max(1, each) for each in size))) * (own.element_size() + 8) if size else 0


def enlarged(own: Tensor, size: Sequence[int] | None, *others: Any, **kwargs: Any) -> int:
    """Interpolation to a size or by factors."""
    if size is not None:
        return resized(own, size)
    factors = next((each for each in others if isinstance(each, (list, tuple))), None) or kwargs.get("scale_factors")
    spatial = [
        length * (factors or [1.0])[min(place, len(factors or [1]) - 1)] for place, length in enumerate(own.shape[2:])
    ]
    if not all(map(math.isfinite, spatial)):
        raise InvalidArgumentError("a scale factor has to be a finite number")
    return math.prod((*own.shape[:2], *(max(1, int(each)) for each in spatial))) * own.element_size()


def sampled(own: Tensor, grid: Tensor, *_: Any, **__: Any) -> int:
    """`grid_sampler`: the channels of the input at the positions of the grid."""
    return math.prod((*own.shape[:2], *grid.shape[1:-1])) * own.element_size()


def convolved(*args: Any, **kwargs: Any) -> int:
    """`convolution`: the result and, where torch builds a column for each window, the columns."""
    own, weight, _, stride, padding, dilation, transposed, more, groups = args[:9]
    count = weight.dim() - 2
    stride, padding, dilation, more = (_each(value, count) for value in (stride, padding, dilation, more))
    if min(stride, default=1) < 1 or min(dilation, default=1) < 1 or groups < 1:
        raise InvalidArgumentError("stride, dilation and groups of a convolution have to be positive")
    if max((*stride, *dilation, *(abs(each) for each in padding), 0)) > MAX_STEP:
        raise InvalidArgumentError(f"stride, dilation and padding of a convolution are at most {MAX_STEP:,} here")
    # The batch may be left out.
    spatial, kernel = own.shape[own.dim() - count :], weight.shape[2:]
    batch = own.shape[0] if own.dim() == weight.dim() else 1
    wide = [reach * (k - 1) + 1 for reach, k in zip(dilation, kernel, strict=True)]
    if transposed:
        out = [(n - 1) * s - 2 * p + k + m for n, s, p, k, m in zip(spatial, stride, padding, wide, more, strict=True)]
        channels, columns = weight.shape[1] * groups, math.prod(spatial)
    else:
        out = [(n + 2 * p - k) // s + 1 for n, s, p, k in zip(spatial, stride, padding, wide, strict=True)]
        channels, columns = weight.shape[0], math.prod(max(0, each) for each in out)
    result = batch * channels * math.prod(max(0, each) for each in out) * own.element_size()
    if own.dtype is torch.float32 and own.numel() > _SMALL_IMAGE:
        return result
    inner = channels if transposed else weight.shape[1] * groups
    return max(result, inner * math.prod(kernel) * columns * own.element_size())


_SMALL_IMAGE: Final = 20_480
"""Elements of a float32 input up to which torch convolves by columns."""


def pooled(own: Tensor, kernel: Any, stride: Any = (), padding: Any = (0,), *_: Any, **__: Any) -> int:
    """Pooling by a kernel, with indices."""
    stride = stride or kernel
    count = len(kernel)
    if min((*stride, *kernel)) < 1:
        raise InvalidArgumentError("kernel and stride of a pooling have to be positive")
    spatial = own.shape[own.dim() - count :]
    out = (
        max(0, (n + 2 * p - k) // s + 2)
        for n, k, s, p in zip(spatial, _each(kernel, count), _each(stride, count), _each(padding, count), strict=True)
    )
    return math.prod((*own.shape[: own.dim() - count], *out)) * (own.element_size() + 8)


def columns(own: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any, **_: Any) -> int:
    """`im2col`: one column for each window of an image."""
    _check_windows(kernel, dilation, padding, stride)
    out = [
        max(0, (n + 2 * p - d * (k - 1) - 1) // s + 1)
        for n, k, d, p, s in zip(own.shape[-2:], kernel, dilation, padding, stride, strict=True)
    ]
    return math.prod(own.shape[:-2]) * math.prod(max(0, each) for each in kernel) * math.prod(out) * own.element_size()


def folded(own: Tensor, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any, **_: Any) -> int:
    """`col2im`: the image that the windows are summed into."""
    _check_windows(kernel, dilation, padding, stride)
    channels = math.prod(own.shape[:-1]) // max(1, math.prod(kernel))
    return max(1, channels) * math.prod(max(1, each) for each in size) * own.element_size()


def unpooled(own: Tensor, indices: Tensor, size: Sequence[int], *_: Any, **__: Any) -> int:
    """`max_unpool`: the channels of the input, at a size given among the arguments."""
    return math.prod(own.shape[: own.dim() - len(size)]) * math.prod(max(1, each) for each in size) * own.element_size()


def attended(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Attention: the result, and the weights between all positions."""
    batch = math.prod(broadcast(each.shape[:-2] for each in (query, key, value)))
    weights = query.shape[-2] * key.shape[-2]
    return batch * max(weights, query.shape[-2] * value.shape[-1]) * query.element_size()


def grid(theta: Tensor, size: Sequence[int], *_: Any, **__: Any) -> int:
    """`affine_grid_generator`: the coordinates of every position."""
    return math.prod(max(0, each) for each in (size[0], *size[2:])) * len(size) * theta.element_size()


def trilinear(*args: Any, **kwargs: Any) -> int:
    """`_trilinear`: a product of three tensors, summed slice by slice along one dimension."""
    shapes = []
    for own, places in zip(args[:3], args[3:6], strict=True):
        shape = list(own.shape)
        for place in sorted(places):
            shape.insert(place, 1)
        shapes.append(shape)
    shape = broadcast(shapes)
    return math.prod(shape) // max(1, shape[args[7] if len(args) > 7 else 1]) * args[0].element_size()


def _check_windows(kernel: Any, dilation: Any, padding: Any, stride: Any) -> None:
    """Refuses window settings with which torch's own arithmetic would overflow."""
    if min((*kernel, *stride, *dilation)) < 1 or min(padding) < 0:
        raise InvalidArgumentError(
            "kernel, stride and dilation of windows are positive, and their padding is not negative"
        )
    if max((*kernel, *stride, *dilation, *padding)) > MAX_STEP:
        raise InvalidArgumentError(f"kernel, stride, dilation and padding of windows are at most {MAX_STEP:,} here")


def _each(value: Any, count: int) -> list[int]:
    numbers = list(value)
    return numbers * count if len(numbers) == 1 else numbers
