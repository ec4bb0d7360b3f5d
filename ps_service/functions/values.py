"""Checks of indices and divisors that torch omits on a CPU, where bad ones read out of bounds or kill the process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ps_service.functions import dtypes
from ps_wire.errors import InvalidArgumentError

Check = Callable[..., None]
"""Takes the arguments of an operation, and raises an `InvalidArgumentError` if they are not accepted."""

_aten = torch.ops.aten


def in_range(indices: Tensor, low: int, high: int, what: str) -> None:
    """Checks that integers lie in [low, high)."""
    if indices.dtype not in dtypes.INTEGER:
        raise InvalidArgumentError(f"{what} have to be integers, not {indices.dtype}")
    if indices.numel():
        numbers = _array(indices)
        least, most = int(numbers.min()), int(numbers.max())
        if least < low or most >= high:
            raise InvalidArgumentError(f"{what} must lie in [{low}, {high}); these lie in [{least}, {most}]")


def no_integer_division_by_zero(*args: Any, **kwargs: Any) -> None:
    """Refuses integer division by 0 and of the smallest integer by -1: some of torch's kernels kill the process."""
    operands = [each for each in args[:2] if isinstance(each, (Tensor, int, float))]
    if len(operands) < 2 or any(_is_floating(each) for each in operands):
        return
    dividend, divisor = operands
    if _holds(divisor, 0):
        raise InvalidArgumentError("integers are divided by 0; divide floating-point numbers, or leave the zeros out")
    if _holds(divisor, -1) and _holds_smallest(dividend):
        raise InvalidArgumentError("the smallest integer of a type cannot be divided by -1: the result does not fit")


def no_rounded_division_by_zero(*args: Any, rounding_mode: str | None = None, **_: Any) -> None:
    """The same for `div`, which divides integers as integers only with a rounding mode."""
    if rounding_mode is not None:
        no_integer_division_by_zero(*args)


def no_smallest(*args: Any, **kwargs: Any) -> None:
    """Refuses the smallest integer, whose greatest common divisor cannot be represented."""
    if any(_holds_smallest(each) for each in args[:2] if isinstance(each, Tensor)):
        raise InvalidArgumentError("the smallest integer of a type has no positive counterpart; leave it out")


def shifts(shifted: Any, amount: Any, **_: Any) -> None:
    """Refuses shifts by a negative number or by more than the number of bits, which are undefined."""
    bits = shifted.element_size() * 8 if isinstance(shifted, Tensor) else 64
    if isinstance(amount, Tensor):
        if amount.dtype in dtypes.INTEGER:
            in_range(amount, 0, bits, "the amounts of a shift")
    elif not 0 <= amount < bits:
        raise InvalidArgumentError(f"the amount of a shift must lie in [0, {bits}), and not be {amount}")


def embedding(table: Tensor, indices: Tensor, *_: Any, **__: Any) -> None:
    """Indices have to name a row."""
    in_range(indices, 0, table.shape[0] if table.dim() else 0, "the indices of an embedding")


def embedding_bag(table: Tensor, indices: Tensor, offsets: Tensor, *others: Any, **kwargs: Any) -> None:
    """Indices have to name a row, offsets to ascend within the indices, and weights to match the indices."""
    embedding(table, indices)
    if table.dim() != 2 or indices.dim() != 1 or offsets.dim() != 1 or not offsets.numel():
        raise InvalidArgumentError("a bag needs a table of two dimensions, and indices and offsets of one")
    in_range(offsets, 0, indices.numel() + 1, "the offsets of bags")
    begins = _array(offsets)
    if (others[4] if len(others) > 4 else False) and int(begins[-1]) != indices.numel():
        raise InvalidArgumentError("the last offset of bags that include it is the number of indices")
    if int(begins[0]) or bool((begins[1:] < begins[:-1]).any()):
        raise InvalidArgumentError("the offsets of bags begin with 0 and ascend")
    weights = others[3] if len(others) > 3 else kwargs.get("per_sample_weights")
    if weights is not None and weights.shape != indices.shape:
        raise InvalidArgumentError("there must be one weight for each index of a bag")


def ctc_loss(
    scores: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, *_: Any, **__: Any
) -> None:
    """Labels have to be classes, and lengths to lie within the inputs and targets."""
    steps, batch, classes = scores.shape
    if not 0 <= blank < classes:
        raise InvalidArgumentError(f"the blank must be one of {classes} classes, and not {blank}")
    in_range(targets, 0, classes, "the labels of a CTC loss")
    inputs, labels = (
        [int(each) for each in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]
        for lengths in (input_lengths, target_lengths)
    )
    if len(inputs) != batch or len(labels) != batch:
        raise InvalidArgumentError(f"a CTC loss needs {batch} lengths of inputs and of targets")
    if any(not 0 <= each <= steps for each in inputs):
        raise InvalidArgumentError(f"the lengths of a CTC loss's inputs must lie in [0, {steps}]")
    longest = targets.shape[1] if targets.dim() == 2 else targets.numel()
    if any(not 0 <= each <= longest for each in labels) or (targets.dim() == 1 and sum(labels) > targets.numel()):
        raise InvalidArgumentError("the lengths of a CTC loss's targets reach beyond the targets")


def unpooling(own: Tensor, indices: Tensor, size: Sequence[int], *_: Any, **__: Any) -> None:
    """Indices have to lie in the output."""
    if indices.shape != own.shape:
        raise InvalidArgumentError("an unpooling needs one index for each number")
    in_range(indices, 0, math.prod(max(0, each) for each in size), "the indices of an unpooling")


def index(own: Tensor, chosen: int, indices: Any, *_: Any, **__: Any) -> None:
    """Indices have to lie in one dimension of the first argument."""
    length = own.shape[chosen] if own.dim() and -own.dim() <= chosen < own.dim() else 1
    # Torch accepts an empty index.
    if isinstance(indices, Tensor) and indices.numel():
        in_range(indices, 0, length, "indices")


def classes(scores: Tensor, targets: Tensor, *_: Any, **__: Any) -> None:
    """Targets have to be classes."""
    count = scores.shape[1] if scores.dim() > 1 else scores.shape[0] if scores.dim() else 0
    if targets.numel() and targets.dtype in dtypes.INTEGER:
        in_range(targets, 0, count, "classes")


def classes_or_ignored(scores: Tensor, targets: Tensor, *others: Any, **kwargs: Any) -> None:
    """Targets have to be classes, or the ignored index."""
    ignored = others[2] if len(others) > 2 else kwargs.get("ignore_index", -100)
    classes(scores, targets[targets != ignored])


def some_rows(own: Tensor, *_: Any, **__: Any) -> None:
    """Refuses an empty matrix: the backward of `pdist` needs at least one row."""
    if not own.numel():
        raise InvalidArgumentError("pdist needs at least one row and one column")


def repeats(counts: Tensor, *_: Any, **__: Any) -> None:
    """Repeats must not be negative, and their sum is bounded."""
    in_range(counts, 0, _MOST_REPEATS, "repeats")
    if float(counts.sum(dtype=torch.float64)) > _MOST_REPEATS:
        raise InvalidArgumentError(f"there would be more than {_MOST_REPEATS:,} elements")


_MOST_REPEATS: Final = 1 << 27

_BY_CHECK: Final[tuple[tuple[Check, str], ...]] = (
    (no_integer_division_by_zero, "floor_divide floor_divide_ remainder remainder_ fmod fmod_"),
    (no_rounded_division_by_zero, "div div_ divide divide_"),
    (no_smallest, "gcd gcd_ lcm lcm_"),
    (
        shifts,
        "bitwise_left_shift bitwise_left_shift_ bitwise_right_shift bitwise_right_shift_ __lshift__ __rshift__ "
        "__ilshift__ __irshift__",
    ),
    (embedding, "embedding embedding_renorm_"),
    (embedding_bag, "_embedding_bag _embedding_bag_forward_only"),
    (ctc_loss, "_ctc_loss"),
    (unpooling, "max_unpool2d max_unpool3d"),
    (
        index,
        "gather scatter scatter_ scatter_add scatter_add_ index_select index_add index_add_ index_copy "
        "index_copy_ scatter_reduce",
    ),
    (classes_or_ignored, "nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d"),
    (classes, "multi_margin_loss"),
    (some_rows, "_pdist_forward"),
    (repeats, "repeat_interleave"),
)

VALUES: Final[dict[Any, Check]] = {
    getattr(_aten, name): check for check, names in _BY_CHECK for name in names.split() if hasattr(_aten, name)
}
"""The further check of an operation's arguments."""


def _array(integers: Tensor) -> Any:
    """The same numbers as a numpy array: numpy is faster for few elements."""
    return (integers if integers.is_cpu else integers.cpu()).detach().numpy()


def _is_floating(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, float)


def _holds(value: Any, number: int) -> bool:
    return bool((value == number).any()) if isinstance(value, Tensor) else value == number


def _holds_smallest(value: Any) -> bool:
    if isinstance(value, Tensor):
        smallest = dtypes.SMALLEST.get(value.dtype, 0)
        return smallest < 0 and bool((value == smallest).any())
    return bool(value in dtypes.SMALLEST.values() and value < 0)
