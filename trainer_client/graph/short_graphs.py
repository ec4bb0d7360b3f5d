"""Short graphs: which backwards run on the event loop, because the way to a thread and back would take longer."""

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

Kinds = tuple[Any, ...]
"""The classes of the nodes of a graph, in the order of a walk."""

INLINE_SECONDS: Final = 200e-6
"""A graph whose backward takes less runs on the event loop."""

_MOST_NODES: Final = 32

_MOST_KINDS: Final = 256


def local_graph(roots: Sequence[Any], context: Context) -> Kinds | None:
    """The nodes of a small graph whose backward computes only what it sends to owners.

    Such a backward waits for nothing: it needs no gradient from an owner, gives none to a leaf of this process, whose
    hooks may wait for other processes, and runs no autograd function of the user.

    Args:
        roots: From where it is propagated.
        context: The pass of all recorded calls.

    Returns:
        The classes of the nodes; None if the graph is not such a one, or not small.
    """
    stack: list[Any] = []
    for root in roots:
        if not isinstance(root, torch.Tensor) or root.grad_fn is None:
            return None
        stack.append(root.grad_fn)
    seen = set(stack)
    kinds: list[type] = []
    while stack:
        node = stack.pop()
        kinds.append(type(node))
        if isinstance(node, RECEIVING):
            if node.call.leads_on or node.call.context is not context:
                return None
            continue
        if isinstance(node, (ACCUMULATING, BackwardCFunction)):
            return None
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
        if len(seen) > _MOST_NODES:
            return None
    return tuple(kinds)


class Durations:
    """How long the backwards of graphs take, as a moving average for all of the same kinds of nodes."""

    def __init__(self) -> None:
        self._seconds: dict[Kinds, float] = {}

    def is_short(self, kinds: Kinds) -> bool:
        """Whether it was seen to take less than `INLINE_SECONDS`."""
        return self._seconds.get(kinds, math.inf) < INLINE_SECONDS

    def note(self, kinds: Kinds, seconds: float) -> None:
        """Adds a measurement."""
        before = self._seconds.get(kinds, seconds)
        if len(self._seconds) >= _MOST_KINDS:
            self._seconds.clear()
        self._seconds[kinds] = 0.8 * before + 0.2 * seconds


durations: Final = Durations()
"""Of all backwards of this process."""
