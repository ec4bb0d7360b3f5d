"""Bytes of the result of a torch operation, computed from its arguments before it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ps_wire.errors import InvalidArgumentError

MAX_PIECES: Final = 16_384
"""Most tensors that one function may return."""

Rule = Callable[..., int]
"""Takes the arguments of an operation as torch's dispatcher passes them."""


def nbytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements, counting repeated ones (stride 0); of a sparse tensor, the bytes it stores."""
    if tensor.layout is torch.sparse_coo:
        return nbytes(tensor._indices()) + nbytes(tensor._values())
    return tensor.numel() * tensor.element_size()


def tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among the arguments of an operation, with repetitions."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(each for each in value if isinstance(each, Tensor))
    return found


def broadcast(shapes: Iterable[Sequence[int]]) -> list[int]:
    """The shape to which shapes broadcast; where they do not fit, the larger length (torch will refuse them)."""
    result: list[int] = []
    for shape in shapes:
        missing = len(shape) - len(result)
        if missing > 0:
            result = [1] * missing + result
        for place, length in enumerate(shape, len(result) - len(shape)):
            result[place] = (
                length if result[place] == 1 else result[place] if length == 1 else max(result[place], length)
            )
    return result


def pointwise(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> int:
    """All tensors broadcast against each other."""
    given = tensors((*args, *kwargs.values()))
    if any(each.layout is torch.sparse_coo for each in given):
        return sum(map(nbytes, given))
    item = max((each.element_size() for each in given), default=0)
    if dtype is not None:
        item = max(item, dtype.itemsize)
    return math.prod(broadcast(each.shape for each in given)) * item


def within(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> int:
    """At most as many elements as the largest argument, in its dtype or the requested one."""
    return _largest((*args, *kwargs.values()), 1 if dtype is None else dtype.itemsize)


def indices(*args: Any, **kwargs: Any) -> int:
    """At least 8 bytes for each element of the largest argument."""
    return _largest(args, 8)


def _largest(values: Iterable[Any], item: int) -> int:
    """Bytes of the largest tensor, if each element has at least so many."""
    return max((each.numel() * max(each.element_size(), item) for each in tensors(values)), default=0)


def together(*args: Any, **kwargs: Any) -> int:
    """All arguments concatenated."""
    return sum(map(nbytes, tensors(args)))


def sized(*places: int) -> Rule:
    """The product of a size argument: the first of these positions that holds a list."""

    def rule(*args: Any, dtype: torch.dtype | None = None, **_: Any) -> int:
        given = (args[place] for place in places if place < len(args))
        size: Sequence[int] = next((each for each in given if isinstance(each, (list, tuple))), ())
        like = next((each for each in args if isinstance(each, Tensor)), None)
        item = dtype.itemsize if dtype is not None else like.element_size() if like is not None else 8
        return math.prod(max(0, each) for each in size) * item

    return rule


def counted(*places: int) -> Rule:
    """The product of the integers at these positions, 8 bytes each."""

    def rule(*args: Any, **kwargs: Any) -> int:
        return math.prod(max(0, int(args[place])) for place in places if place < len(args)) * 8

    return rule


def stepped(*args: Any, **kwargs: Any) -> int:
    """`arange` and its overloads."""
    numbers = [each for each in args if isinstance(each, (int, float))]
    start, end, step = (0, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    if not all(map(math.isfinite, (start, end, step))) or step == 0:
        raise InvalidArgumentError("arange takes finite numbers and a step other than 0")
    return int(max(0.0, (end - start) / step) + 1) * 8


def expanded(own: Tensor, size: Sequence[int], **_: Any) -> int:
    """`expand`: repeated elements count, although they are stored once."""
    shape = [1] * (len(size) - own.dim()) + list(own.shape)
    return math.prod(max(length, asked) for length, asked in zip(shape, size, strict=False)) * own.element_size()


def repeated(own: Tensor, repeats: Sequence[int], **_: Any) -> int:
    """`repeat`."""
    return nbytes(own) * math.prod(max(0, each) for each in repeats)


def windows(own: Tensor, dimension: int, size: int, step: int, **_: Any) -> int:
    """`Tensor.unfold`: overlapping windows of one dimension."""
    return nbytes(own) * max(1, math.ceil(max(size, 1) / max(step, 1)))


def matrices(*args: Any, **kwargs: Any) -> int:
    """Products of matrices and vectors, with an optional addend."""
    given = tensors(args)
    left, right = given[-2:]
    item = max(each.element_size() for each in given)
    rows = left.shape[-2] if left.dim() > 1 else 1
    columns = right.shape[-1] if right.dim() > 1 else 1
    batch = left.shape[0] if left.dim() > 2 else 1
    result = batch * rows * columns * item
    return max(result, *(nbytes(each) for each in given)) if len(given) > 2 else result


def solutions(left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    """`lstsq`: a solution for each column of the right side, as long as a row or column of the matrix."""
    columns = max(right.shape[-1:], default=1)
    return math.prod(broadcast((left.shape[:-2], right.shape[:-2]))) * max(left.shape[-2:]) * columns * 8


def outer(*args: Any, **kwargs: Any) -> int:
    """Products of each element with each other element."""
    given = tensors(args)
    return math.prod(each.numel() for each in given) * max(each.element_size() for each in given)


def rows(table: Tensor, indices: Tensor, *_: Any, **__: Any) -> int:
    """`embedding`: one row of the table for each index."""
    return indices.numel() * math.prod(table.shape[1:]) * table.element_size()


def chosen(own: Tensor, dimension: int, index: Tensor, **_: Any) -> int:
    """`index_select`: one dimension becomes as long as the index."""
    length = own.shape[dimension] if own.dim() else 1
    others = math.prod(each for place, each in enumerate(own.shape) if place != dimension % max(own.dim(), 1))
    return (others if length or index.numel() else 0) * index.numel() * own.element_size()


def gathered(own: Tensor, *others: Any, **_: Any) -> int:
    """`gather` and `take`: as many elements as indices."""
    return tensors(others)[-1].numel() * own.element_size()


def indexed(own: Tensor, indices: Sequence[Tensor | None], **_: Any) -> int:
    """`index`: as many elements as the broadcast indices, times the dimensions that are kept."""
    given = [each for each in indices if each is not None]
    chosen = [each for each in given if each.dtype not in (torch.bool, torch.uint8)]
    if len(chosen) < len(given):
        return max(nbytes(own), *(16 * each.numel() * max(1, each.dim()) for each in given))
    kept = math.prod(own.shape[place] for place in range(own.dim()) if place >= len(indices) or indices[place] is None)
    return math.prod(broadcast(each.shape for each in chosen)) * kept * own.element_size()


def positions(own: Tensor, **_: Any) -> int:
    """`nonzero`: at most the coordinates of every element."""
    return own.numel() * max(1, own.dim()) * 8


def distances(left: Tensor, right: Tensor, *_: Any, **__: Any) -> int:
    """`cdist`: distances between all rows of two matrices, for each batch."""
    batch = math.prod(broadcast((left.shape[:-2], right.shape[:-2])))
    item = left.element_size()
    return batch * max(left.shape[-2] * right.shape[-2], left.shape[-2] * left.shape[-1], 1) * item


def pairs(own: Tensor, *_: Any, **__: Any) -> int:
    """`pdist`: distances between all rows of one matrix."""
    count = own.shape[0] if own.dim() else 0
    return count * count // 2 * own.element_size()


def squared(own: Tensor, offset: int = 0, *_: Any, **__: Any) -> int:
    """Matrices with the rows of the argument on their diagonals."""
    side = (own.shape[-1] if own.dim() else 1) + abs(offset)
    return math.prod(own.shape[:-1]) * side**2 * own.element_size()


def flat_squared(own: Tensor, offset: int = 0, *_: Any, **__: Any) -> int:
    """One matrix with the argument on its diagonal."""
    return (own.numel() + abs(offset)) ** 2 * own.element_size()


def square(rows: int, columns: int | None = None, **_: Any) -> int:
    """`eye`: a square matrix, or one of two lengths."""
    return max(0, rows) * max(0, rows if columns is None else columns) * 8


def binned(own: Tensor, bins: int = 100, *_: Any, **__: Any) -> int:
    """`histc`: one element per bin."""
    return max(0, bins) * 8


def drawn(own: Tensor, count: int, *_: Any, **__: Any) -> int:
    """`multinomial`: the number of samples for each row."""
    return max(1, own.numel() // max(1, own.shape[-1])) * max(0, count) * 8


def tallied(own: Tensor, weights: Tensor | None = None, minlength: int = 0, **_: Any) -> int:
    """`bincount`: a count for each integer up to the largest."""
    return max(int(own.max()) + 1 if own.numel() else 0, minlength) * 8


def multiplied(counts: Tensor, *_: Any, **__: Any) -> int:
    """`repeat_interleave`: the sum of the repeats."""
    return int(counts.sum(dtype=torch.float64)) * 8


def items(count: int) -> None:
    """Checks the number of tensors that a function returns."""
    if count > MAX_PIECES:
        raise InvalidArgumentError(f"this would make {count:,} tensors; {MAX_PIECES:,} are allowed at a time")


def cut(own: Tensor, length: int, dim: int = 0, **_: Any) -> int:
    """`split`: tensors of one length."""
    if own.dim() and -own.dim() <= dim < own.dim() and length > 0:
        items(math.ceil(own.shape[dim] / length))
    return within(own)


def unbound(own: Tensor, dim: int = 0, **_: Any) -> int:
    """`unbind`: one tensor for each index of a dimension."""
    if own.dim() and -own.dim() <= dim < own.dim():
        items(own.shape[dim])
    return within(own)
