"""Graphs: a walk over torch's autograd graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.autograd.graph import get_gradient_edge

_ACCUMULATING: Final[Any] = type(get_gradient_edge(torch.empty(0, requires_grad=True)).node)
"""The class of the nodes that lead to leaves; torch gives it no public name."""


def leaves_of(roots: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that require grad and that a backward from these roots can reach."""
    found: dict[int, torch.Tensor] = {}
    stack: list[Any] = []
    for root in roots:
        if root.grad_fn is not None:
            stack.append(root.grad_fn)
        elif root.requires_grad:
            found[id(root)] = root
    seen = set(stack)
    while stack:
        node = stack.pop()
        if isinstance(node, _ACCUMULATING):
            found[id(node.variable)] = node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return list(found.values())
