"""Walks over torch's autograd graph."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

ACCUMULATING: Final[Any] = type(get_gradient_edge(torch.empty(0, device="cpu", requires_grad=True)).node)
"""The class of the nodes that accumulate the gradients of leaves, for which torch has no public name."""

MOST_NODES: Final = 10_000
"""Nodes that are looked at where a walk need not be complete. Torch frees the nodes that Python has seen by recursion,
so a walk over a graph that is much deeper would overflow the stack when the graph is freed."""


class TooManyNodes(Exception):
    """A graph has more nodes than a walk may look at."""


def leaves_of(roots: Iterable[torch.Tensor | GradientEdge], most: float = math.inf) -> list[torch.Tensor]:
    """The leaves that require grad and that a backward from these roots can reach."""
    return reached_from(roots, most=most)[0]


def reached_from(
    roots: Iterable[torch.Tensor | GradientEdge], kind: Any = (), most: float = math.inf
) -> tuple[list[torch.Tensor], list[Any]]:
    """The leaves that require grad, and the nodes of one class, that a backward from these roots can reach. Raises
    `TooManyNodes` if the graph has more than `most` nodes."""
    found: dict[int, torch.Tensor] = {}
    nodes: list[Any] = []
    stack: list[Any] = []
    for root in roots:
        if isinstance(root, GradientEdge):
            stack.append(root.node)
        elif root.grad_fn is not None:
            stack.append(root.grad_fn)
        elif root.requires_grad:
            found[id(root)] = root
    seen = set(stack)
    while stack:
        if len(seen) > most:
            raise TooManyNodes
        node = stack.pop()
        if isinstance(node, ACCUMULATING):
            found[id(node.variable)] = node.variable
        elif isinstance(node, kind):
            nodes.append(node)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return list(found.values()), nodes
