"""Trees: the nested lists, tuples, dicts and slices that values are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ps_wire.refs import Ref


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a tree, in the order in which the codec meets them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(key)
            yield from tensors_in(item)
    elif isinstance(value, slice):
        yield from tensors_in((value.start, value.stop, value.step))


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same tree with each tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    if isinstance(value, tuple) and not isinstance(value, Ref):
        return tuple([mapped(item, change) for item in value])
    if isinstance(value, dict):
        return {mapped(key, change): mapped(item, change) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(mapped(value.start, change), mapped(value.stop, change), mapped(value.step, change))
    return value
