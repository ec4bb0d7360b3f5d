"""The autograd leaves that stand for parameters during calls, and whether anything uses them."""

from __future__ import annotations

import sys
import weakref
from itertools import repeat
from operator import attrgetter, gt, is_not, methodcaller, or_, sub
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge, increment_version
from torch.nn import Parameter

from ps_service.parameters.state import ParameterState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ps_wire.refs import Ref

_data: Any = torch.Tensor.data
_detach: Any = torch.Tensor.detach

_MAKING: Final = Parameter.__new__.__code__
"""The code object of `Parameter.__new__`, which calls `detach()` on tensors that are not plain parameters."""

_UNUSED: Final = 3
"""References to the storage of a parameter: of the parameter, of its leaf, and of the storage's object in Python while
they are counted."""

_UNSAVED: Final = 1
"""References to a leaf in an open graph that has not saved it: of its Python object. If it is trained, its accumulating
node has one more."""

_count: Any = torch._C._storage_Use_Count
_storage: Any = torch.Tensor.untyped_storage
_address: Final = attrgetter("_cdata")
use_count: Any = torch.Tensor._use_count  # type: ignore[attr-defined]
"""The number of references to a tensor that torch counts: one of its Python object, and those of graphs."""


class StandIn(Parameter):
    """A leaf on a parameter's storage that detects writes to it. Torch's version counter misses writes through `.data`,
    which has a counter of its own. So that tensor is kept. `data_was_read` tells whether code has asked for the `.data`
    of any leaf of this process. Its version was raised `told` times for writes to the storage in another way."""

    data_was_read = False
    told = 0

    @property
    def data(self) -> torch.Tensor:
        """The data without autograd; the same tensor every time."""
        found: torch.Tensor | None = self.__dict__.get("_data")
        if found is None:
            StandIn.data_was_read = True
            found = self.__dict__["_data"] = _data.__get__(self)
        return found

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self.__dict__.pop("_data", None)
        _data.__set__(self, value)

    def detach(self) -> torch.Tensor:
        """A tensor on the same storage, detached from autograd. `nn.Parameter` needs one of the same class."""
        found: torch.Tensor = _detach(self)
        if sys._getframe(1).f_code is _MAKING:
            found.__class__ = type(self)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Makes a parameter with its own storage, like the copy of any parameter."""
        if id(self) not in memo:
            memo[id(self)] = Parameter(_data.__get__(self).clone(), self.requires_grad)
        return memo[id(self)]


def is_stand_in(leaf: torch.Tensor) -> bool:
    """Whether a leaf replaces a parameter. Torch marks those that code has made of one with `nn.Parameter`."""
    return isinstance(leaf, StandIn) and "_is_param" not in leaf.__dict__


def is_written(leaf: torch.Tensor) -> bool:
    """Whether code has written to a leaf in place."""
    if leaf._version > getattr(leaf, "told", 0):
        return True
    given = leaf.__dict__.get("_data")
    return given is not None and bool(given._version)


class Leaf(NamedTuple):
    """The leaf of a parameter in a recorded call. If it `is_shared`, other calls have it, too. `ref` is the parameter's
    handle; None if it does not belong to a hosted module. Its gradient arrives at the `edge`, if that is known."""

    ref: Ref | None
    parameter: torch.Tensor
    tensor: torch.Tensor
    is_shared: bool = False
    edge: GradientEdge | None = None


class LeafSet:
    """Some leaves, the addresses of their memory (`storages`), and the state in which calls leave them that change
    none."""

    def __init__(self, leaves: list[Leaf], states: Sequence[ParameterState]) -> None:
        self.leaves = leaves
        self._states = states
        tensors = list(map(_tensor, leaves))
        self.storages = {each.untyped_storage().data_ptr() for each in tensors}
        self._pointers = list(map(_pointer, tensors))
        self._are_trained = list(map(_is_trained, tensors))

    def touched(self) -> list[int]:
        """The positions of leaves that calls have written to, moved, frozen, hooked, or accumulated gradients at."""
        tensors = list(map(_tensor, self.leaves))
        if not (
            any(map(_version, tensors))
            or any(map(_hooks, tensors))
            or any(map(_late_hooks, tensors))
            or any(map(is_not, map(_grad, tensors), repeat(None)))
            or list(map(_pointer, tensors)) != self._pointers
            or list(map(_is_trained, tensors)) != self._are_trained
            or StandIn.data_was_read
        ):
            return []
        return [i for i, each in enumerate(tensors) if self._is_touched(i, each)]

    def _is_touched(self, i: int, leaf: torch.Tensor) -> bool:
        marked = is_written(leaf) or leaf._backward_hooks or leaf._post_accumulate_grad_hooks or leaf.grad is not None
        return bool(marked) or self.is_moved(i) or leaf.requires_grad is not self._are_trained[i]

    def is_moved(self, i: int) -> bool:
        """Whether a call has given a leaf other memory."""
        return bool(self.leaves[i].tensor.data_ptr() != self._pointers[i])

    def is_overtaken(self, i: int) -> bool:
        """Whether a step has moved the parameter since the leaf was made: it does not have what was written to that."""
        return bool(self._states[i].visible_of(self.leaves[i].parameter).data_ptr() != self._pointers[i])


def references(leaves: Sequence[torch.Tensor]) -> list[int]:
    """The numbers of references from Python. Torch has one of its own to the object of a tensor that C++ refers to."""
    return list(map(sub, map(sys.getrefcount, leaves), map(gt, map(use_count, leaves), repeat(1))))


class SharedLeaves:
    """One leaf for each parameter. A step writes to the memory in place if nothing needs the leaf as it is. `current`
    has the leaves. It is replaced when leaves are, so that calls and records keep theirs; `version` counts that.

    Whether anything needs a leaf shows in counts of references. Torch's are not public. So they are checked when this
    module is imported: where they do not count as expected, every leaf counts as used, and steps move all parameters.
    """

    def __init__(
        self, parameters: Sequence[Parameter], refs: Sequence[Ref | None], states: Sequence[ParameterState]
    ) -> None:
        self._parameters = parameters
        self._refs = refs
        self._states = states
        self.version = 0
        # Leaves that were replaced, and that open graphs may still have saved.
        self._former: list[list[weakref.ref[torch.Tensor]]] = [[] for _ in parameters]
        self.current = LeafSet([self._leaf(i) for i in range(len(parameters))], states)
        self.tensors = list(map(_tensor, self.current.leaves))
        # The references to them that are no use: those from here, and from views.
        self._referrers = references(self.tensors)
        # Positions of leaves to replace although their parameters have not moved.
        self.dropped: set[int] = set()

    def _leaf(self, i: int) -> Leaf:
        """A fresh leaf, which has neither hooks nor attributes."""
        parameter = self._parameters[i]
        # `.data`, not `.detach()`: a detached tensor shares the version counter, and torch would then refuse the
        # backward of a pass whose parameters another trainer has stepped, although the values it needs still exist.
        leaf = self._states[i].visible_of(parameter).data.requires_grad_(parameter.requires_grad)
        leaf.__class__ = StandIn
        # A backward that refers to the leaf itself would look like a graph that has saved it.
        edge = get_gradient_edge(leaf) if leaf.requires_grad else None
        return Leaf(self._refs[i], parameter, leaf, is_shared=True, edge=edge)

    def renew(self) -> None:
        """Replaces the leaves of parameters that have moved, were frozen or were written to by hosted code."""
        leaves = self.current.leaves
        old = [i for i, leaf in enumerate(leaves) if i in self.dropped or not self._is_current(i, leaf)]
        if not old:
            return
        leaves = leaves.copy()
        for i in old:
            self._former[i] = [each for each in self._former[i] if each() is not None]
            self._former[i].append(weakref.ref(leaves[i].tensor))
            leaves[i] = self._leaf(i)
            self.tensors[i] = leaves[i].tensor
            (self._referrers[i],) = references(self.tensors[i : i + 1])
            self._referrers[i] -= 1  # that of the slice
        self.version += 1
        self.current = LeafSet(leaves, self._states)
        self.dropped.clear()

    def _is_current(self, i: int, leaf: Leaf) -> bool:
        present = self._states[i].visible_of(leaf.parameter)
        return (
            leaf.tensor.data_ptr() == present.data_ptr() and leaf.tensor.requires_grad is leaf.parameter.requires_grad
        )

    def expect(self, i: int, references: int) -> None:
        """Notes further references of the owner to a leaf."""
        self._referrers[i] += references

    def used(self, others: Callable[[int], list[torch.Tensor]]) -> list[bool]:
        """For each leaf, whether an open graph or other code may need it, or another tensor on its memory. `others`
        returns the leaves of other modules with the parameter at a position. These have their own counts."""
        leaves = self.tensors
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
        place = self.tensors[i].untyped_storage().data_ptr()
        return sum(each.untyped_storage().data_ptr() == place for each in others)

    def note_written(self, i: int) -> None:
        """Has graphs raise that have saved a leaf of a parameter that hosted code has written to."""
        pointer = self._parameters[i].data_ptr()
        for leaf in (self.tensors[i], *(each() for each in self._former[i])):
            if leaf is not None and leaf.data_ptr() == pointer:
                leaf.told += 1
                increment_version(leaf)
        self.dropped.add(i)


_tensor: Final = attrgetter("tensor")
_version: Final = attrgetter("_version")
_hooks: Final = attrgetter("_backward_hooks")
_late_hooks: Final = attrgetter("_post_accumulate_grad_hooks")
_grad: Final = attrgetter("grad")
_is_trained: Final = attrgetter("requires_grad")
_pointer: Any = methodcaller("data_ptr")


def _counts_as_expected() -> bool:
    """Whether counts tell a leaf that a graph has saved, or an alias of it, from one that it has not."""
    parameter = Parameter(torch.ones(2, 2))
    x = torch.ones(1, 2, requires_grad=True)
    shared = SharedLeaves([parameter], [None], [ParameterState()])

    def used(_: Any) -> bool:
        return shared.used(lambda i: []) == [True]

    leaf = shared.tensors
    unused = [used(None), used(torch.nn.functional.embedding(torch.tensor([1]), leaf[0]))]
    saved = [used(x @ leaf[0]), used(torch.nn.functional.linear(x, leaf[0].detach()))]
    leaf = []  # the former one lies on the same memory
    parameter.requires_grad_(False)
    shared = SharedLeaves([parameter], [None], [ParameterState()])
    unused.append(used(None))
    leaf = shared.tensors
    saved += [used(x @ leaf[0]), used(torch.nn.functional.linear(x, leaf[0].detach()))]
    return not any(unused) and all((*saved, used(parameter.data), used(leaf[0])))


_AS_EXPECTED = True
_AS_EXPECTED = _counts_as_expected()
