"""Examines the autograd graph behind a call's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.function import AUTOGRAD_FUNCTION_COUNTER, BackwardCFunction

from ps_service.hosting.references import RRef
from ps_wire.codec.trees import leaves_in, parts_of
from ps_wire.numerics.autograd_graph import MOST_NODES, TooManyNodes, reached_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KNOWN: Final = ("torch", "ps_service", "ps_wire", "trainer_client")
"""Packages whose autograd functions save tensors only through torch, where hooks see them."""


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


_COUNTER: Final = AUTOGRAD_FUNCTION_COUNTER
"""Counts the autograd functions defined in this process; listing them takes longer than a small call."""

_made = ""
_has = False


def _below(cls: Any) -> Iterator[Any]:
    for each in cls.__subclasses__():
        yield each
        yield from _below(each)


def _is_own(cls: Any) -> bool:
    return cls.__module__.partition(".")[0] not in _KNOWN
