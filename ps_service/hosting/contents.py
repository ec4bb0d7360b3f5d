"""What the attributes of a module refer to at one moment, to tell later whether calls have changed it."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.hosting.running_statistics import with_statistics
from ps_service.hosting.structure import all_below, below

if TYPE_CHECKING:
    from torch import nn

MOST: Final = 10_000
"""Most objects of a module that are compared."""


class Contents:
    """The objects behind a module's attributes: its parts, containers, closures and instances, each with its contents.

    Running statistics do not count: they have locks of their own.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        statistics = {id(each) for layer in with_statistics(module) for each in layer.buffers()}
        self._contents = [(each, _within(each)) for each in all_below(module, MOST) if id(each) not in statistics]

    def are_same(self) -> bool:
        """Whether all of them refer to the same objects as before, and no tensor was written to."""
        return all(_are_same(_within(each), before) for each, before in self._contents)


def _within(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value._version, value.requires_grad]
    return [*below(value), *value.keys()] if isinstance(value, dict) else list(below(value))


def _are_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))
