"""Tells which leaves on the memory of parameters are in use, by counts of references.

Torch's counts are not public. So they are checked when this module is imported: where they do not count as expected,
every leaf counts as used, and steps move the parameters of all modules that have views.
"""

from __future__ import annotations

import sys
from itertools import repeat
from operator import attrgetter, gt, or_, sub
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UNUSED: Final = 3
"""References to the storage of a parameter: of the parameter, of its leaf, and of the storage's object in Python while
they are counted."""

_UNSAVED: Final = 1
"""References to a leaf in an open graph that has not saved it: of its Python object. If it is trained, its accumulating
node has one more."""

_count: Any = torch._C._storage_Use_Count
_storage: Any = torch.Tensor.untyped_storage
_address: Final = attrgetter("_cdata")
_is_trained: Final = attrgetter("requires_grad")
use_count: Any = torch.Tensor._use_count  # type: ignore[attr-defined]
"""The number of references to a tensor that torch counts: one of its Python object, and those of graphs."""


class LeafUses:
    """Counts the references to some leaves, one for each parameter. Nothing uses them yet."""

    __slots__ = ("_referrers", "leaves")

    def __init__(self, leaves: list[torch.Tensor]) -> None:
        self.leaves = leaves
        # Those that the owner of the leaves has itself.
        self._referrers = references(leaves)

    def note_replaced(self, i: int) -> None:
        """Notes that a leaf was replaced by another, which nothing uses yet."""
        (self._referrers[i],) = references(self.leaves[i : i + 1])
        self._referrers[i] -= 1  # that of the slice

    def expect(self, i: int, references: int) -> None:
        """Notes further references of the owner to a leaf."""
        self._referrers[i] += references

    def used(self, others: Callable[[int], list[torch.Tensor]]) -> list[bool]:
        """For each leaf, whether an open graph or other code may need it, or another tensor on its memory. `others`
        returns the leaves of other modules with the parameter at a position. These have their own counts."""
        leaves = self.leaves
        if not _AS_EXPECTED:
            return [True] * len(leaves)
        memory = list(map(_count, map(_address, map(_storage, leaves))))
        if memory and max(memory) > _UNUSED:
            memory = [n if n <= _UNUSED else n - self._beside(i, others(i)) for i, n in enumerate(memory)]
        saved = map(gt, map(sub, map(use_count, leaves), map(_is_trained, leaves)), repeat(_UNSAVED))
        in_graphs = map(or_, saved, map(gt, memory, repeat(_UNUSED)))
        # Such as those of an autograd function that has kept a leaf; counted as in `references`.
        now = list(map(sub, map(sys.getrefcount, leaves), map(gt, map(use_count, leaves), repeat(1))))
        used = list(map(or_, in_graphs, map(gt, now, self._referrers)))
        # References of the owner that are gone must not hide those of others.
        self._referrers = list(map(min, now, self._referrers))
        return used

    def _beside(self, i: int, others: list[torch.Tensor]) -> int:
        """How many of some tensors lie on the memory of a leaf."""
        place = self.leaves[i].untyped_storage().data_ptr()
        return sum(each.untyped_storage().data_ptr() == place for each in others)


def references(leaves: Sequence[torch.Tensor]) -> list[int]:
    """The numbers of references from Python. Torch has one of its own to the object of a tensor that C++ refers to."""
    return list(map(sub, map(sys.getrefcount, leaves), map(gt, map(use_count, leaves), repeat(1))))


def _counts_as_expected() -> bool:
    """Whether counts tell a leaf that a graph has saved, or an alias of it, from one that it has not."""
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    x = torch.ones(1, 2, requires_grad=True)
    uses = LeafUses([parameter.data.requires_grad_()])

    def used(_: Any) -> bool:
        return uses.used(lambda i: []) == [True]

    leaf = uses.leaves
    unused = [used(None), used(torch.nn.functional.embedding(torch.tensor([1]), leaf[0]))]
    saved = [used(x @ leaf[0]), used(torch.nn.functional.linear(x, leaf[0].detach()))]
    leaf = []  # the former one lies on the same memory
    uses = LeafUses([parameter.data])  # as of a frozen parameter
    unused.append(used(None))
    leaf = uses.leaves
    saved += [used(x @ leaf[0]), used(torch.nn.functional.linear(x, leaf[0].detach()))]
    return not any(unused) and all((*saved, used(parameter.data), used(leaf[0])))


_AS_EXPECTED = True
_AS_EXPECTED = _counts_as_expected()
