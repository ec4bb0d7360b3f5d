"""What both kinds of bindings of a module to a call have in common, and what they refuse.

The autograd graph behind a call's result is examined, so that its backward can propagate through it.
"""

from __future__ import annotations

import functools
from itertools import repeat
from operator import ne
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.function import AUTOGRAD_FUNCTION_COUNTER, BackwardCFunction

from ps_service.hosting.aliases import WHY, is_within
from ps_service.hosting.histories import REFUSAL, reaches_ended
from ps_service.hosting.hooks import hooked_nodes
from ps_service.hosting.leaves import is_stand_in, use_count
from ps_service.hosting.references import RRef
from ps_service.hosting.structure import tensors_below
from ps_wire.codec.trees import leaves_in, parts_of
from ps_wire.errors import ContextLostError, InvalidArgumentError
from ps_wire.numerics.autograd_graph import MOST_NODES, TooManyNodes, leaves_of, reached_from

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from ps_service.hosting.leaves import Leaf
    from ps_service.hosting.objects import HostedObject
    from ps_service.hosting.views import Call
    from ps_service.parameters.locks import ParameterLocks
    from ps_service.passes.pass_values import PassValues
    from ps_wire.errors import PsError


FIRST_EXAMINED: Final = 8
"""Number of first recorded calls of each method in which parameters of other hosted modules are looked for."""

EXAMINED_EVERY: Final = 64
"""Of the later recorded calls, every one of this number is examined again."""

_KNOWN: Final = ("torch", "ps_service", "ps_wire", "trainer_client")
"""Packages whose autograd functions save tensors only through torch, where hooks see them."""

_COUNTER: Final = AUTOGRAD_FUNCTION_COUNTER
"""Counts the autograd functions defined in this process; listing them takes longer than a small call."""


class Binding:
    """A module while a call of some kind runs on it: on a view, or on the module itself.

    `code` is the name of the method or function that runs, and `has_set` tells whether that has set an attribute of a
    module. If it `is_held`, code of the module may run in the backward; on the module itself, that finds the `values`.
    It `uses_others` if the graph of the call may reach leaves that are not those of the module, as far as is known.
    `leaves` has for each parameter what a record keeps of it, and `steps` the number of its steps when the call began.
    The errors say what to do instead.
    """

    has_set = False
    is_held = False
    values: PassValues | None = None
    leaves: Sequence[Leaf]
    steps: Sequence[int]

    def __init__(self, parameter_locks: ParameterLocks, hosted: HostedObject, kind: Call) -> None:
        self.parameter_locks = parameter_locks
        self.hosted = hosted
        self.kind = kind
        self.code = kind[0]
        self.internals = hosted.internals
        self.views = hosted.views
        self.parameters = hosted.views.parameters
        self.uses_others = hosted.uses_others
        self._failed: PsError | None = None

    def hold(self) -> None:
        """Notes that code of the module may run in the backward, where it finds the values of this call."""
        self.is_held = True

    def finds_parameters(self) -> None:
        """Notes that the graph of the call reaches parameters themselves, beside leaves of a view."""

    def private_ids(self) -> set[int]:
        """`id()` of the modules and leaves that belong to calls."""
        return set()

    def name(self, i: int) -> str:
        """The dotted name of a parameter."""
        return self.hosted.parameter_refs[i].parameter

    def parameter_behind(self, leaf: torch.Tensor) -> str | None:
        """The dotted name of the parameter that is, or that has, a leaf of this call."""
        return next((self.name(i) for i, each in enumerate(self.leaves) if each.tensor is leaf), None)

    def settle(self, raised: bool) -> None:
        """Raises the error for what the code has done and may not do, or others have done meanwhile. The module has
        been given back."""
        if self._failed is not None and not raised:
            raise self._failed

    def inspect(self, roots: Sequence[torch.Tensor], known: Container[int]) -> None:
        """Refuses a call whose backward would need tensors that its record does not keep, and notes what it needs
        besides leaves. `roots` are the tensors of its result that require grad, and `known` all its leaves, by
        `id()`."""
        if self.internals.ends_histories and reaches_ended(roots):
            raise InvalidArgumentError(f"{self.code} of {self.hosted} {REFUSAL}")
        # The node that accumulates a parameter's gradient refers to the parameter.
        if any(map(ne, map(use_count, self.parameters), repeat(1))):
            others = [each for each in self.parameters if id(each) not in known and use_count(each) != 1]
            if others and not set(map(id, others)).isdisjoint(map(id, _some_leaves(roots))):
                # Through a global variable, for example, instead of the module's attributes.
                self.finds_parameters()
        # The whole graph is examined in the first calls, and then now and then: that costs more than a small call. It
        # is each time where a leaf is hosted by itself, which the code may find in a global variable.
        count = self.hosted.recorded[self.code]
        if count < FIRST_EXAMINED or count % EXAMINED_EVERY == 0 or self.parameter_locks.has_other_leaves:
            self._examine(_some_leaves(roots), known)
        self.hosted.recorded[self.code] += 1  # what is refused does not count, and is refused again
        if has_own_functions() and runs_own_function(roots):
            self.hold()

    def _examine(self, leaves: Sequence[torch.Tensor], known: Container[int]) -> None:
        own = {*map(id, self.parameters)}
        if any(self.parameter_locks.lends(leaf) for leaf in leaves if id(leaf) not in known and id(leaf) not in own):
            raise InvalidArgumentError(
                f"{self.code} of {self.hosted} has computed with a parameter of another hosted module in a way that "
                "a trainer cannot train. Make that module a submodule (an attribute, or in an nn.ModuleList), or take "
                "it from its reference, with rref.local_value(), when the module is called"
            )
        if any(is_stand_in(leaf) and id(leaf) not in known for leaf in leaves):
            raise InvalidArgumentError(f"{self.code} of {self.hosted} {REFUSAL}")
        if any(id(leaf) not in known for leaf in leaves):
            self.hosted.uses_others = self.uses_others = True
        if hooked_nodes(leaf for leaf in leaves if id(leaf) in known):
            raise InvalidArgumentError(
                f"{self.code} of {self.hosted} has registered a hook at the node of torch's graph that accumulates a "
                "parameter's gradient, and here no such node runs. Register it on a tensor that the call computes, or, "
                "in the constructor, on the parameter"
            )

    def _is_alias(self, value: Any, own: Container[int]) -> bool:
        """Whether a value has a tensor in the memory of a parameter, besides those with these `id()`."""
        tensors: list[torch.Tensor] = []
        tensors_below(value, tensors)
        return any(is_within(each, self.parameters) for each in tensors if id(each) not in own)

    def restructured(self) -> InvalidArgumentError:
        """The error for a call that has changed the structure of its module."""
        return InvalidArgumentError(
            f"{self.code} has added, replaced or deleted a parameter or submodule of {self.hosted}; the "
            "structure of a hosted module is fixed once it is made. Write to parameters with copy_() or .data instead"
        )

    def aliased(self, name: str) -> InvalidArgumentError:
        """The error for a call that has kept memory of a parameter in an attribute."""
        return InvalidArgumentError(
            f"{self.code} has set attribute {name!r} of {self.hosted} to a tensor in the memory of a parameter, but "
            f"{WHY}. Keep a copy of it, with clone()"
        )

    def hooked(self, i: int) -> InvalidArgumentError:
        """The error for a call that has left a hook at a parameter which would never run, or only for some calls."""
        return InvalidArgumentError(
            f"{self.code} has registered a hook at parameter {self.name(i)!r} of {self.hosted} that could not run as "
            "it does locally: nothing is ever accumulated in the .grad of hosted parameters, and other calls have "
            "tensors of their own in the parameter's place. Register it with register_hook in the constructor"
        )

    def accumulated(self, i: int) -> InvalidArgumentError:
        """The error for a call that has accumulated gradients at a parameter."""
        return InvalidArgumentError(
            f"{self.code} has called backward() on what it computed from parameter {self.name(i)!r} of "
            f"{self.hosted}. Gradients of hosted parameters belong to the pass of a trainer; inside hosted "
            "code use torch.autograd.grad"
        )

    def overtaken(self, i: int) -> ContextLostError:
        """The error for a call whose write to a parameter a step may have undone. Later calls take turns."""
        return ContextLostError(
            f"{self.code} has written to parameter {self.name(i)!r} of {self.hosted} while a step changed it, so that "
            "what it has written may be lost: run it again"
        )

    def misplaced(
        self, i: int, moved: torch.Tensor, before: torch.Tensor, others: Sequence[torch.Tensor]
    ) -> InvalidArgumentError | None:
        """The error for a call that has given a parameter another shape or dtype, or the memory of something else.
        `moved` is the parameter or its leaf with its new memory, and `others` are the other ones of the module."""
        if moved.shape != before.shape or moved.dtype != before.dtype:
            return InvalidArgumentError(
                f"{self.code} has given parameter {self.name(i)!r} of {self.hosted} another shape or dtype; "
                "those of a hosted module are fixed, and nothing was changed"
            )
        if is_within(moved, others):
            owner = "another parameter"
        elif is_within(moved, self.internals.found().tensors):
            owner = "a tensor that the module keeps"
        else:
            return None
        return InvalidArgumentError(
            f"{self.code} has given parameter {self.name(i)!r} of {self.hosted} the memory of {owner}. Hosted "
            "parameters have memory of their own, and nothing was changed. Give it a copy, with clone()"
        )


def _some_leaves(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves of a graph; none if it is very large."""
    try:
        return leaves_of(roots, MOST_NODES)
    except TooManyNodes:
        return []


def results_in(result: Any) -> list[torch.Tensor]:
    """The tensors of a result that require grad, including those in results that stay on this owner."""
    if isinstance(result, torch.Tensor):
        return [result] if result.requires_grad else []
    found: list[torch.Tensor] = []
    for leaf in leaves_in(result):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
            continue
        # Members of a group have references of their own around those of the owner.
        reference = leaf if isinstance(leaf, RRef) else getattr(leaf, "hosted", None)
        if isinstance(reference, RRef) and reference.hosted is None:
            found += [part for part in parts_of(reference.local_value()) if isinstance(part, torch.Tensor)]
    return [tensor for tensor in found if tensor.requires_grad]


def has_own_functions() -> bool:
    """Whether hosted code has defined autograd functions, so that graphs have to be examined."""
    return _have_own(repr(_COUNTER))


@functools.lru_cache(maxsize=1)
def _have_own(made: str) -> bool:
    return any(map(_is_own, _below(torch.autograd.Function)))


def runs_own_function(roots: Sequence[torch.Tensor]) -> bool:
    """Whether the graph holds such a function, which may keep tensors as attributes, unseen by torch's hooks."""
    try:
        nodes = reached_from(roots, BackwardCFunction, MOST_NODES)[1]
    except TooManyNodes:
        return True  # it may
    return any(_is_own(node._forward_cls) for node in nodes)


def _below(cls: Any) -> Iterator[Any]:
    for each in cls.__subclasses__():
        yield each
        yield from _below(each)


def _is_own(cls: Any) -> bool:
    return cls.__module__.partition(".")[0] not in _KNOWN
