"""Tells which leaves on the memory of parameters are in use, by counts of references.

Torch's counts are not public. So they are checked when this module is imported: where they do not count as expected,
every leaf counts as used, and steps move the parameters of all modules that have views.
"""

from __future__ import annotations

import sys
from itertools import repeat
from operator import attrgetter, gt, sub
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALONE: Final = 2
"""References to the storage of a parameter that nothing else refers to: of the parameter, and of the storage's object
in Python while they are counted."""

_UNSAVED: Final = 2
"""References to a leaf in an open graph that has not saved it: of its Python object, and of its accumulating node."""

_count: Any = torch._C._storage_Use_Count
_storage: Any = torch.Tensor.untyped_storage
_address: Final = attrgetter("_cdata")
use_count: Any = torch.Tensor._use_count  # type: ignore[attr-defined]
"""The number of references to a tensor that torch counts: one of its Python object, and those of graphs."""


class LeafUses:
    """Counts the references to some leaves.

    Args:
        leaves: The leaves, one for each parameter. Nothing uses them yet, and their owner has its references to them.

    Attributes:
        leaves: The leaves.
    """

    __slots__ = ("_holders", "_referrers", "_unsaved", "leaves")

    def __init__(self, leaves: list[torch.Tensor]) -> None:
        self.leaves = leaves
        self._unsaved = [_UNSAVED] * len(leaves)
        self._holders = [_ALONE + 1] * len(leaves)
        self._referrers = references(leaves)

    def replaced(self, i: int) -> None:
        """Notes that a leaf was replaced by another, which nothing uses yet."""
        (self._referrers[i],) = references(self.leaves[i : i + 1])
        self._referrers[i] -= 1  # that of the slice

    def expect(self, i: int, references: int) -> None:
        """Notes further references of the owner to a leaf."""
        self._referrers[i] += references

    def expect_leaves(self, counts: Sequence[int]) -> None:
        """Notes for each parameter how many such leaves lie on its memory: one for each module that has it."""
        self._holders = [_ALONE + count for count in counts]

    def any(self) -> bool:
        """Whether an open graph or other code may need one of the leaves, or other tensors on its memory."""
        leaves = self.leaves
        if not _AS_EXPECTED or any(map(gt, map(use_count, leaves), self._unsaved)):
            return True
        if any(map(gt, map(_count, map(_address, map(_storage, leaves))), self._holders)):
            return True
        # Such as those of an autograd function that has kept a leaf.
        now = list(map(sub, map(sys.getrefcount, leaves), map(gt, map(use_count, leaves), repeat(1))))
        found = any(map(gt, now, self._referrers))
        # References of the owner that are gone must not hide those of others.
        self._referrers = list(map(min, now, self._referrers))
        return found

    def places(self) -> list[int]:
        """The positions of the leaves for which that is so."""
        return [i for i in range(len(self.leaves)) if self._of(i).any()]

    def _of(self, i: int) -> LeafUses:
        """The uses of one leaf."""
        found = LeafUses.__new__(LeafUses)
        found.leaves = self.leaves[i : i + 1]
        found._unsaved, found._holders = self._unsaved[i : i + 1], self._holders[i : i + 1]
        # With the reference of the slice.
        found._referrers = [self._referrers[i] + 1]
        return found


def references(leaves: Sequence[torch.Tensor]) -> list[int]:
    """The numbers of references from Python. Torch has one of its own to the object of a tensor that C++ refers to."""
    return list(map(sub, map(sys.getrefcount, leaves), map(gt, map(use_count, leaves), repeat(1))))


def _counts_as_expected() -> bool:
    """Whether counts tell a leaf that a graph has saved, or an alias of it, from one that it has not."""
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    x = torch.ones(1, 2, requires_grad=True)
    uses = LeafUses([parameter.data.requires_grad_()])

    def used(_: Any) -> bool:
        return uses.any() and bool(uses.places())

    leaf = uses.leaves
    unused = [used(None), used(torch.nn.functional.embedding(torch.tensor([1]), leaf[0]))]
    saved = [used(x @ leaf[0]), used(torch.nn.functional.linear(x, leaf[0].detach()))]
    return not any(unused) and all((*saved, used(parameter.data), used(leaf[0])))


_AS_EXPECTED = True
_AS_EXPECTED = _counts_as_expected()
