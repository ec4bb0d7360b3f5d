"""Finds short backwards, which run on the event loop, because a hand-over to a thread would take longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.function import BackwardCFunction

from ps_wire.numerics.autograd_graph import ACCUMULATING
from ps_wire.runtime.latencies import Latencies
from trainer_client.graph.nodes import RECEIVING, SENDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_wire.runtime.latency import Latency
    from trainer_client.contexts.context import Context

_MOST_NODES: Final = 32
"""Most nodes of a graph that is considered."""

_latencies: Final[Latencies[tuple[type, ...]]] = Latencies()
"""Of backwards, by the classes of the nodes of their graphs in the order of the walk."""


def local_graph(roots: Sequence[Any], context: Context) -> tuple[Latency, list[torch.Tensor]] | None:
    """Recognizes a small graph whose backward never waits.

    Such a backward needs no gradient from an owner, and runs no hook of a leaf and no autograd function of the program.
    In a process of a `torch.distributed` group it reaches no leaf: DistributedDataParallel waits there for others.

    Args:
        roots: The tensors to propagate from.
        context: The pass of all recorded calls.

    Returns:
        How long backwards of graphs with the same nodes take, and the leaves; None if the graph is not of this kind, or
        too large.
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
            call = node.call
            if call.context is not context or (call.leads_on and call.waits):
                return None
            if not call.leads_on:
                continue
        elif isinstance(node, ACCUMULATING):
            leaf = node.variable
            if leaf._backward_hooks or leaf._post_accumulate_grad_hooks or _is_in_a_group():
                return None
            leaves.append(leaf)
            continue
        elif isinstance(node, BackwardCFunction) and not isinstance(node, SENDING):
            return None
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
        if len(seen) > _MOST_NODES:
            return None
    return _latencies.of(tuple(kinds)), leaves


def _is_in_a_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
