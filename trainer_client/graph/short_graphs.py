"""Finds short backwards, which run on the event loop, because a hand-over to a thread would take longer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.function import BackwardCFunction

from ps_wire.numerics.autograd_graph import ACCUMULATING
from trainer_client.graph.nodes import RECEIVING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_client.contexts.context import Context

INLINE_SECONDS: Final = 200e-6
"""Graphs whose backward takes less than this run on the event loop."""

_MOST_NODES: Final = 32
"""Most nodes of a graph that is considered."""

_MOST_KNOWN: Final = 256
"""Most kinds of graphs whose average time is kept."""


class LocalGraph:
    """The measured time of graphs with the same kinds of nodes, whose backward needs no answer of an owner.

    Args:
        kinds: The classes of the nodes, in the order of a walk.

    Attributes:
        seconds: Moving average of the time of their backward; infinity before the first.
    """

    __slots__ = ("_kinds", "seconds")

    def __init__(self, kinds: tuple[type, ...]) -> None:
        self._kinds = kinds
        self.seconds = math.inf

    def note(self, seconds: float) -> None:
        """Adds a measurement, and keeps the average for other graphs."""
        if self.seconds == math.inf:
            self.seconds = seconds
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[self._kinds] = self
        else:
            self.seconds = 0.8 * self.seconds + 0.2 * seconds


_known: Final[dict[tuple[type, ...], LocalGraph]] = {}


def local_graph(roots: Sequence[Any], context: Context) -> tuple[LocalGraph, list[torch.Tensor]] | None:
    """Recognizes a small graph whose backward never waits.

    Such a backward needs no gradient from an owner, and runs no hook of a leaf and no autograd function of the program.
    In a process of a `torch.distributed` group it reaches no leaf: DistributedDataParallel waits there for others.

    Args:
        roots: The tensors to propagate from.
        context: The pass of all recorded calls.

    Returns:
        The measured time of graphs with the same nodes, and the leaves; None if the graph is not of this kind, or too
        large.
    """
    stack: list[Any] = []
    for root in roots:
        if not isinstance(root, torch.Tensor) or root.grad_fn is None:
            return None
        stack.append(root.grad_fn)
    seen = set(stack)
    kinds: list[type] = []
    leaves: list[torch.Tensor] = []
    while stack:
        node = stack.pop()
        kinds.append(type(node))
        if isinstance(node, RECEIVING):
            if node.call.leads_on or node.call.context is not context:
                return None
            continue
        if isinstance(node, ACCUMULATING):
            leaf = node.variable
            if leaf._backward_hooks or leaf._post_accumulate_grad_hooks or _is_in_a_group():
                return None
            leaves.append(leaf)
            continue
        if isinstance(node, BackwardCFunction):
            return None
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
        if len(seen) > _MOST_NODES:
            return None
    return _known.get(tuple(kinds)) or LocalGraph(tuple(kinds)), leaves


def _is_in_a_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
