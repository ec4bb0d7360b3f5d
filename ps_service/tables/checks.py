"""Checks of what is given to a table. Nothing was changed when one fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError

GRADIENT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def checked_ids(ids: torch.Tensor, rows: int | None) -> torch.Tensor:
    """Contiguous ids.

    Args:
        ids: What was given.
        rows: Number of rows of a table of fixed size; None for any ids.

    Raises:
        InvalidArgumentError: They are not a vector of int64, or a table of fixed size has no such row.
    """
    if ids.dtype != torch.int64 or ids.dim() != 1 or ids.layout != torch.strided or ids.device.type != "cpu":
        raise InvalidArgumentError(f"ids are an int64 vector, not {tuple(ids.shape)} {ids.dtype} on {ids.device}")
    ids = ids.contiguous()
    if rows is not None and len(ids):
        low, high = (int(each) for each in torch.aminmax(ids))
        if low < 0 or high >= rows:
            raise InvalidArgumentError(
                f"the table has {rows:,} rows, 0 to {rows - 1:,}; ids from {low:,} to {high:,} were given"
            )
    return ids


def checked_offsets(offsets: torch.Tensor, count: int) -> torch.Tensor:
    """Where bags begin, as contiguous int64.

    Raises:
        InvalidArgumentError: They do not begin with 0, fall, or are larger than the number of ids.
    """
    if offsets.dtype not in (torch.int64, torch.int32) or offsets.dim() != 1 or offsets.device.type != "cpu":
        raise InvalidArgumentError(f"offsets are a vector of integers, not {tuple(offsets.shape)} {offsets.dtype}")
    offsets = offsets.long().contiguous()
    if not len(offsets):
        if count:
            raise InvalidArgumentError(f"{count} ids were given without bags that they belong to")
        return offsets
    if int(offsets[0]) or int(offsets[-1]) > count or bool((offsets[1:] < offsets[:-1]).any()):
        raise InvalidArgumentError(f"offsets begin with 0, do not fall, and are at most the number of ids, {count}")
    return offsets


def checked_weights(weights: torch.Tensor | None, mode: str, count: int) -> torch.Tensor | None:
    """Per-sample weights as float32.

    Raises:
        InvalidArgumentError: Their number is not that of the ids, or the mode is not "sum".
    """
    if mode not in ("sum", "mean"):
        raise InvalidArgumentError(f'the mode of a bag is "sum" or "mean", not {mode!r}')
    if weights is None:
        return None
    if mode != "sum":
        raise InvalidArgumentError('weights go with mode="sum" only, as in torch')
    if weights.shape != (count,) or weights.dtype not in GRADIENT_DTYPES or weights.device.type != "cpu":
        raise InvalidArgumentError(f"weights are {count} floating-point numbers, one for each id")
    return weights.detach().float().contiguous()


def checked_gradients(gradients: torch.Tensor, shape: tuple[int, int], refuse_non_finite: bool) -> torch.Tensor:
    """Gradients as contiguous float32.

    Raises:
        InvalidArgumentError: They have another shape, or are no floating-point numbers.
        NonFiniteGradientError: One is NaN or infinite, and that is refused.
    """
    if tuple(gradients.shape) != shape or gradients.dtype not in GRADIENT_DTYPES or gradients.device.type != "cpu":
        raise InvalidArgumentError(
            f"gradients are floating-point numbers of shape {shape}, not {tuple(gradients.shape)} {gradients.dtype}"
        )
    gradients = gradients.detach().float().contiguous()
    # Adding 0 times each number is NaN if any is not finite: one pass, without a tensor of booleans.
    if refuse_non_finite and not bool((gradients.view(-1) * 0).sum() == 0):
        raise NonFiniteGradientError("a gradient holds NaN or infinity; the table was not changed")
    return gradients


LIFE: Final = ("age", "sightings")
"""What a block may have of when and how often its rows were looked up, int64 [n]."""


def used_part(block: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A block without the rows that are not in use, if it says which are.

    Raises:
        InvalidArgumentError: It does not say so for each row.
    """
    rest = dict(block)
    in_use = rest.pop("in_use", None)
    if in_use is None:
        return rest
    if in_use.dtype != torch.bool or any(each.shape[:1] != in_use.shape for each in rest.values()):
        raise InvalidArgumentError("a block of rows has one entry for each row in each of its tensors")
    return {name: each[in_use] for name, each in rest.items()}


def check_block(block: Mapping[str, torch.Tensor], dim: int, dtype: torch.dtype, widths: Mapping[str, int]) -> None:
    """Checks a block of rows.

    Args:
        block: Tensors by name. What the optimizer keeps may be left out as a whole, and so may each of `LIFE`.
        dim: Width of a row.
        dtype: Dtype of a row.
        widths: What the optimizer keeps, and how many numbers of each.

    Raises:
        InvalidArgumentError: It has other names, shapes or dtypes, or an id twice.
    """
    life, block = {each: block[each] for each in LIFE if each in block}, {**block}
    for name, each in life.items():
        if each.shape != block.get("ids", each).shape or each.dtype != torch.int64 or each.device.type != "cpu":
            raise InvalidArgumentError(f"{name!r} of a block of rows is a whole number for each of its rows")
        del block[name]
    if not any(name.startswith("state.") for name in block):
        widths = {}
    count = len(block["ids"]) if "ids" in block else -1
    states = {f"state.{name}": (count, width) for name, width in widths.items()}
    expected = {"ids": (count,), "values": (count, dim), **states}
    given = {name: tuple(each.shape) for name, each in block.items()}
    dtypes = [block[name].dtype == torch.float32 for name in states if name in block]
    if given != expected or not all(dtypes) or block["values"].dtype != dtype:
        raise InvalidArgumentError(f"this block of rows has {given}; the table has {expected} and {dtype} rows")
    if len(torch.unique(block["ids"])) != count:
        raise InvalidArgumentError("an id is twice in a block of rows")


def check_size(name: str, value: int | None, most: int) -> None:
    """Checks a size; only that named "dim" may not be None.

    Raises:
        InvalidArgumentError: It is no whole number from 1 to `most`.
    """
    if value is None and name != "dim":
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidArgumentError(f"{name} is a whole number from 1 to {most:,}, not {value!r}")
