"""Trees: the nested lists, tuples and dicts that values are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch


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


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same tree with each tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    if isinstance(value, tuple):
        return tuple([mapped(item, change) for item in value])
    if isinstance(value, dict):
        return {mapped(key, change): mapped(item, change) for key, item in value.items()}
    return value
