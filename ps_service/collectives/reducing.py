"""Reduces the values of all members of a communicator to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.reducer import Reducer, kind_of


def reduced(values: Sequence[Any], op: str, place: str = "") -> Any:
    """The reduction of values, in the order of ranks: numbers, dense tensors, or lists, tuples and dicts of these.

    Raises `InvalidArgumentError`, which names two ranks and `place`, if structures, shapes or dtypes differ.
    """
    first = values[0]
    if isinstance(first, dict):
        for rank, value in enumerate(values):
            _check(isinstance(value, dict) and value.keys() == first.keys(), rank, place, first, value)
        return {key: reduced([value[key] for value in values], op, f"{place}[{key!r}]") for key in first}
    if isinstance(first, (list, tuple)):
        for rank, value in enumerate(values):
            _check(type(value) is type(first) and len(value) == len(first), rank, place, first, value)
        items = zip(*values, strict=True)
        return type(first)(reduced(each, op, f"{place}[{index}]") for index, each in enumerate(items))
    kind = kind_of(first)
    reducer = Reducer(op)
    for rank, value in enumerate(values):
        _check(isinstance(value, (torch.Tensor, int, float)) and kind_of(value) == kind, rank, place, first, value)
        reducer.add(value)
    return reducer.result


def _check(fits: bool, rank: int, place: str, first: Any, value: Any) -> None:
    if not fits:
        where = f" at {place}" if place else ""
        raise InvalidArgumentError(
            f"the values{where} do not fit together: rank 0 has {_described(first)}, and rank {rank} "
            f"{_described(value)}"
        )


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor) or type(value) in (int, float, bool):
        return str(kind_of(value))
    if isinstance(value, dict):
        return f"a dict with the keys {', '.join(sorted(map(repr, value)))[:200]}"
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__
