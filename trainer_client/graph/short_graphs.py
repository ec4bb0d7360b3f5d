"""Recognizes graphs whose backward can run on the event loop, because a hand-over to a thread would take longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

from ps_wire.numerics.autograd_graph import ACCUMULATING
from ps_wire.runtime.latency import Latencies
from trainer_client.graph.nodes import RECEIVING, SENDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ps_wire.runtime.latency import Latency
    from trainer_client.graph.way_back import Pass, WayBack

LOOP_SECONDS: Final = 1e-3
"""A backward that takes longer has a thread. To start one and to come back takes 0.1 to 1 ms of the same processors."""

_MOST_NODES: Final = 32
"""Most nodes of a graph that is considered."""

_latencies: Final[Latencies[tuple[type, ...]]] = Latencies()
"""Of runs of torch's engine, by the classes of the nodes of their graphs in the order of the walk."""


class Second(NamedTuple):
    """What is left of a backward when the owner has answered the call that it waits for.

    Attributes:
        latency: How long torch's engine takes for it.
        call: The call.
        edges: The edges in the graph at which the call's inputs were made, in order.
    """

    latency: Latency
    call: WayBack
    edges: Sequence[GradientEdge]


class ShortGraph(NamedTuple):
    """A small graph without code of the program in its backward, which waits at most once.

    Attributes:
        latency: How long torch's engine takes for it, up to the call that it waits for.
        leaves: The leaves.
        calls: All recorded calls.
        ends: The nodes of the leaves and of the calls at which the first run of torch's engine ends.
        second: What follows when the owner has answered; None if the backward never waits.
    """

    latency: Latency
    leaves: list[torch.Tensor]
    calls: list[WayBack]
    ends: Sequence[Any]
    second: Second | None

    @property
    def is_short(self) -> bool:
        """Whether each run of torch's engine takes less than `LOOP_SECONDS`."""
        return self.latency.expected() < LOOP_SECONDS and (
            self.second is None or self.second.latency.expected() < LOOP_SECONDS
        )


def short_graph(roots: Sequence[Any], context: Pass) -> ShortGraph | None:
    """Recognizes a small graph whose backward waits at most once: for the gradients of the inputs of one call.

    Such a backward runs no hook of a leaf and no autograd function of the program. In a process of a
    `torch.distributed` group it reaches no leaf: DistributedDataParallel waits there for others.

    What makes the inputs of the call must take part in nothing else of the backward, and reach no leaf. Then all
    gradients are added in the same order if torch's engine runs twice: once up to the call, and once from its inputs.

    Args:
        roots: The tensors to propagate from.
        context: The pass of all recorded calls.

    Returns:
        None if the graph is not of this kind, or too large.
    """
    starts = []
    for root in roots:
        if not isinstance(root, torch.Tensor) or root.grad_fn is None:
            return None
        starts.append(root.grad_fn)
    walk = _Walk(context)
    if not walk.go(starts):
        return None
    latency, ends, second = _latencies.of(tuple(walk.kinds)), tuple(walk.ends), None
    if walk.waiting is not None:
        if walk.is_chained:
            return None
        second = _second(walk, walk.waiting)
        if second is None:
            return None
    return ShortGraph(latency, walk.leaves, walk.calls, ends, second)


def _second(walk: _Walk, receiving: Any) -> Second | None:
    """What lies before the inputs of the call that a backward waits for; None if it is not of the kind."""
    sending = receiving.next_functions[0][0]
    # Further inputs are tokens.
    if not isinstance(sending, SENDING) or len(sending.next_functions) != len(receiving.call.devices):
        return None
    starts = [node for node, _ in sending.next_functions]
    first, leaves = walk.seen, len(walk.leaves)
    walk.seen, walk.kinds, walk.waiting = set(), [], None
    if not walk.go(starts) or walk.waiting is not None or walk.is_chained:
        return None
    if len(walk.leaves) > leaves or not first.isdisjoint(walk.seen):
        return None
    edges = [GradientEdge(*edge) for edge in sending.next_functions]
    return Second(_latencies.of(tuple(walk.kinds)), receiving.call, edges)


class _Walk:
    """A walk over a graph, up to the calls that need no gradient and to one that the backward waits for.

    Args:
        context: The pass of all recorded calls.

    Attributes:
        kinds: The classes of the nodes, in order.
        leaves: The leaves.
        calls: The recorded calls.
        ends: The nodes of leaves and calls.
        waiting: The node of the call that the backward waits for.
        is_chained: Whether it goes on through another call, because that call's inputs stay on the owner.
        seen: All nodes.
    """

    def __init__(self, context: Pass) -> None:
        self._context = context
        self.kinds: list[type] = []
        self.leaves: list[torch.Tensor] = []
        self.calls: list[WayBack] = []
        self.ends: list[Any] = []
        self.waiting: Any = None
        self.is_chained = False
        self.seen: set[Any] = set()

    def go(self, starts: Iterable[Any]) -> bool:
        """Walks from some nodes; returns whether the graph is of the kind."""
        stack = list(dict.fromkeys(starts))
        seen = self.seen
        seen.update(stack)
        while stack:
            node = stack.pop()
            self.kinds.append(type(node))
            if isinstance(node, RECEIVING):
                call = node.call
                if call.context is not self._context:
                    return False
                self.calls.append(call)
                self.ends.append(node)
                if not call.leads_on:
                    continue
                if call.waits:
                    if self.waiting is not None:
                        return False
                    self.waiting = node
                    continue
                self.is_chained = True
            elif isinstance(node, ACCUMULATING):
                leaf = node.variable
                if leaf._backward_hooks or leaf._post_accumulate_grad_hooks or _is_in_a_group():
                    return False
                self.leaves.append(leaf)
                self.ends.append(node)
                continue
            elif isinstance(node, BackwardCFunction) and not isinstance(node, SENDING):
                return False
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    stack.append(following)
            if len(seen) > _MOST_NODES:
                return False
        return True


def _is_in_a_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
