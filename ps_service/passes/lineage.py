"""Lineage: what the autograd graph behind a call's result holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch.autograd.function import BackwardCFunction

from ps_service.hosting.references import RRef
from ps_wire.codec.trees import leaves_in, tensors_in
from ps_wire.numerics.autograd_graph import reached_from

_KNOWN: Final = ("torch", "ps_service", "ps_wire", "trainer_client")
"""Packages whose autograd functions keep tensors only where torch's hooks see them."""


def results_in(result: Any) -> Iterator[torch.Tensor]:
    """The tensors of a result that require grad, also of what stays here."""
    for leaf in leaves_in(result):
        if isinstance(leaf, torch.Tensor):
            if leaf.requires_grad:
                yield leaf
        elif isinstance(leaf, RRef) and leaf.hosted is None:
            yield from (tensor for tensor in tensors_in(leaf.local_value()) if tensor.requires_grad)


def has_own_functions() -> bool:
    """Whether hosted code has written autograd functions of its own: then graphs have to be looked at."""
    global _seen, _has
    classes = torch.autograd.Function.__subclasses__()
    if len(classes) != _seen:
        _seen, _has = len(classes), any(map(_is_own, classes))
    return _has


def runs_own_function(roots: Sequence[torch.Tensor]) -> bool:
    """Whether the graph holds such a function, which may keep tensors as attributes, where torch does not see them."""
    return any(_is_own(node._forward_cls) for node in reached_from(roots, BackwardCFunction)[1])


_seen = 0
_has = False


def _is_own(cls: Any) -> bool:
    return cls.__module__.partition(".")[0] not in _KNOWN
