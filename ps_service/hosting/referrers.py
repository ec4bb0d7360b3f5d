"""Tells whether anything goes on using a bound copy, or the leaves of its run, after the run."""

from __future__ import annotations

import sys
from operator import gt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn


class Referrers:
    """Counts the references to the parts of one bound copy and to its leaves, such as those of a hook in an open graph.

    Args:
        parts: The objects of the copy.
    """

    __slots__ = ("_leaves", "_objects", "_parts")

    def __init__(self, parts: Sequence[Any]) -> None:
        self._objects = parts
        self._parts: list[int] = []
        self._leaves: list[int] = []

    def note(self, bound: Sequence[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """A run is about to begin.

        Args:
            bound: Parameters, and what stands for them.
        """
        if not self._parts:
            self._parts = list(map(sys.getrefcount, self._objects))
        self._leaves = _referring(bound)

    def of_parts(self) -> bool:
        """Whether anything but the bound copy itself refers to a part of it."""
        return any(map(gt, map(sys.getrefcount, self._objects), self._parts))

    def of_leaves(self, bound: Sequence[tuple[nn.Parameter, torch.Tensor]]) -> bool:
        """Whether there are more references to leaves than when the run began."""
        return any(map(gt, _referring(bound), self._leaves))


def _referring(bound: Sequence[tuple[nn.Parameter, torch.Tensor]]) -> list[int]:
    """How many references to leaves there are from Python; torch's graph, if it refers to one, has one more."""
    return [sys.getrefcount(leaf) - (leaf._use_count() > 1) for _, leaf in bound]  # type: ignore[attr-defined]
