"""Checks of what is given to a table. Each raises `InvalidArgumentError`, and nothing was changed then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown

WEIGHT_DTYPES: Final = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def checked_ids(ids: torch.Tensor, rows: int | None) -> torch.Tensor:
    """Contiguous ids."""
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
    """Where bags begin, as contiguous int64."""
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


def checked_weights(weights: torch.Tensor | None, count: int) -> torch.Tensor | None:
    """Per-sample weights as float32. Raises `InvalidArgumentError` if their number is not that of the ids."""
    if weights is None:
        return None
    if weights.shape != (count,) or weights.dtype not in WEIGHT_DTYPES or weights.device.type != "cpu":
        raise InvalidArgumentError(f"weights are {count} floating-point numbers, one for each id")
    return weights.detach().float().contiguous()


LIFE: Final = ("age", "sightings")
"""What a block may have of when and how often its rows were looked up, int64 [n]."""


def used_part(block: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A block without the rows that are not in use, if it says which are."""
    rest = dict(block)
    in_use = rest.pop("in_use", None)
    if in_use is None:
        return rest
    if in_use.dtype != torch.bool or any(each.shape[:1] != in_use.shape for each in rest.values()):
        raise InvalidArgumentError("a block of rows has one entry for each row in each of its tensors")
    return {name: each[in_use] for name, each in rest.items()}


def check_block(block: Mapping[str, torch.Tensor], dim: int, dtype: torch.dtype, widths: Mapping[str, int]) -> None:
    """Raises `InvalidArgumentError` for a block with other names, shapes or dtypes than a table has, or an id twice.
    What the optimizer keeps, `widths` numbers of each name, may be left out as a whole, and so may each of `LIFE`."""
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
    """Raises `InvalidArgumentError` for what is no whole number from 1 to `most`, or None for "dim"."""
    if value is None and name != "dim":
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidArgumentError(f"{name} is a whole number from 1 to {most:,}, not {shown(value)}")
