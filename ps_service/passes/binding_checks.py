"""Examines the autograd graph behind a call's result, and refuses what its backward could not propagate through."""

from __future__ import annotations

from itertools import repeat
from operator import ne
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.function import AUTOGRAD_FUNCTION_COUNTER, BackwardCFunction

from ps_service.hosting.histories import REFUSAL, reaches_ended
from ps_service.hosting.hooks import hooked_nodes
from ps_service.hosting.leaves import is_stand_in
from ps_service.hosting.references import RRef
from ps_service.parameters.uses import use_count
from ps_wire.codec.trees import leaves_in, parts_of
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.autograd_graph import MOST_NODES, TooManyNodes, leaves_of, reached_from

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from ps_service.passes.binding import Binding

FIRST_EXAMINED: Final = 8
"""Number of first recorded calls of each method in which parameters of other hosted modules are looked for."""

EXAMINED_EVERY: Final = 64
"""Of the later recorded calls, every one of this number is examined again."""

_KNOWN: Final = ("torch", "ps_service", "ps_wire", "trainer_client")
"""Packages whose autograd functions save tensors only through torch, where hooks see them."""

_COUNTER: Final = AUTOGRAD_FUNCTION_COUNTER
"""Counts the autograd functions defined in this process; listing them takes longer than a small call."""

_made = ""
_has = False


def inspect(binding: Binding, roots: Sequence[torch.Tensor], known: Container[int]) -> None:
    """Checks that the backward of a call needs only tensors that its record keeps, and notes others.

    `roots` are the tensors of the call's result that require grad, and `known` are all leaves of the call, by `id()`.

    Raises:
        InvalidArgumentError: Their graph reaches a tensor whose history has ended with an earlier call.
    """
    if binding.internals.ends_histories and reaches_ended(roots):
        raise InvalidArgumentError(f"{binding.code} of {binding.hosted} {REFUSAL}")
    # The node that accumulates a parameter's gradient refers to the parameter.
    if any(map(ne, map(use_count, binding.parameters), repeat(1))):
        others = [each for each in binding.parameters if id(each) not in known and use_count(each) != 1]
        if others and not set(map(id, others)).isdisjoint(map(id, _some_leaves(roots))):
            # Through a global variable, for example, instead of the module's attributes.
            binding.finds_parameters()
    # The whole graph is examined in the first calls, and then now and then: that costs more than a small call.
    binding.hosted.recorded[binding.code] += 1
    count = binding.hosted.recorded[binding.code]
    if count <= FIRST_EXAMINED or count % EXAMINED_EVERY == 0:
        _examine(binding, _some_leaves(roots), known)
    if has_own_functions() and runs_own_function(roots):
        binding.hold()


def _some_leaves(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves of a graph; none if it is very large."""
    try:
        return leaves_of(roots, MOST_NODES)
    except TooManyNodes:
        return []


def _examine(binding: Binding, leaves: Sequence[torch.Tensor], known: Container[int]) -> None:
    own = {*map(id, binding.parameters)}
    if any(binding.parameter_locks.lends(leaf) for leaf in leaves if id(leaf) not in known and id(leaf) not in own):
        raise InvalidArgumentError(
            f"{binding.code} of {binding.hosted} has computed with a parameter of another hosted module in a way that "
            "a trainer cannot train. Make that module a submodule (an attribute, or in an nn.ModuleList), or take "
            "it from its reference, with rref.local_value(), when the module is called"
        )
    if any(is_stand_in(leaf) and id(leaf) not in known for leaf in leaves):
        raise InvalidArgumentError(f"{binding.code} of {binding.hosted} {REFUSAL}")
    if any(id(leaf) not in known for leaf in leaves):
        binding.hosted.uses_others = binding.uses_others = True
    if hooked_nodes(leaf for leaf in leaves if id(leaf) in known):
        raise InvalidArgumentError(
            f"{binding.code} of {binding.hosted} has registered a hook at the node of torch's graph that accumulates a "
            "parameter's gradient, and here no such node runs. Register it on a tensor that the call computes, or, in "
            "the constructor, on the parameter"
        )


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
    global _made, _has
    made = repr(_COUNTER)
    if made != _made:
        _made, _has = made, any(map(_is_own, _below(torch.autograd.Function)))
    return _has


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
