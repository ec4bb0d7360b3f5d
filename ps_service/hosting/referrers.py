"""Tells whether other objects refer to a bound copy, or to the leaves of its run, after the run."""

from __future__ import annotations

import sys
from operator import gt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn


class Referrers:
    """Counts the references to the parts and leaves of one bound copy, such as those of a hook in an open graph.

    Args:
        parts: The objects of the copy.
    """

    __slots__ = ("_leaves", "_objects", "_parts")

    def __init__(self, parts: Sequence[Any]) -> None:
        self._objects = parts
        self._parts: list[int] = []
        self._leaves: list[int] = []

    def note(self, bound: Sequence[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """Counts the references before a run.

        Args:
            bound: The parameters and their leaves.
        """
        if not self._parts:
            self._parts = list(map(sys.getrefcount, self._objects))
        self._leaves = _referring(bound)

    def of_parts(self) -> bool:
        """Whether other objects than the bound copy itself refer to a part of it."""
        return any(map(gt, map(sys.getrefcount, self._objects), self._parts))

    def of_leaves(self, bound: Sequence[tuple[nn.Parameter, torch.Tensor]]) -> bool:
        """Whether there are more references to leaves than when the run began."""
        return any(map(gt, _referring(bound), self._leaves))


def _referring(bound: Sequence[tuple[nn.Parameter, torch.Tensor]]) -> list[int]:
    """The numbers of references to leaves from Python. If torch's graph refers to one, that has one more."""
    return [sys.getrefcount(leaf) - (leaf._use_count() > 1) for _, leaf in bound]  # type: ignore[attr-defined]
