"""What backwards reach; and which run on the event loop, because a hand-over to a thread would take longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge
from torch.utils.checkpoint import CheckpointFunction

from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics import autograd_graph
from ps_wire.numerics.autograd_graph import ACCUMULATING
from ps_wire.runtime.latency import Latencies
from trainer_client.graph.nodes import RECEIVING, ROOT, SENDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ps_wire.runtime.latency import Latency
    from trainer_client.graph.nodes import Pass, WayBack

LOOP_SECONDS: Final = 1e-3
"""A backward that takes longer has a thread. To start one and to come back takes 0.1 to 1 ms of the same processors."""

_MOST_NODES: Final = 32
"""Most nodes of a graph that is considered."""

_REENTRANT: Final[Any] = CheckpointFunction._backward_cls
"""The class of the nodes of reentrant checkpoints."""

_latencies: Final[Latencies[tuple[type, ...]]] = Latencies()
"""Of runs of torch's engine, by the classes of the nodes of their graphs in the order of the walk."""


class Second(NamedTuple):
    """What is left of a backward when an owner has answered a call: it goes on at the edges of the call's inputs."""

    latency: Latency
    call: WayBack
    edges: Sequence[GradientEdge]


class Graph(NamedTuple):
    """What a backward reaches. It is short if each run of torch's engine takes less than `LOOP_SECONDS`.

    If it waits for a call, its first run ends at nodes, and `second` is what follows when the owner has answered.
    """

    latency: Latency | None
    is_short: bool
    leaves: Sequence[torch.Tensor]
    calls: Sequence[WayBack]
    ends: Sequence[GradientEdge] = ()
    second: Second | None = None


def short_graph(roots: Sequence[Any], context: Pass) -> Graph | None:
    """Recognizes a small graph whose backward waits at most once: for the gradients of the inputs of one call.

    Such a backward runs no hook of a leaf and no autograd function of the program, and all calls are of this pass.
    In a process of a `torch.distributed` group it reaches no leaf: DistributedDataParallel waits there for others.

    What makes the inputs of the call must take part in nothing else of the backward, and reach no leaf. Then all
    gradients are added in the same order if torch's engine runs twice: once up to the call, and once from its
    inputs.
    """
    starts = []
    for root in roots:
        if not isinstance(root, torch.Tensor) or root.grad_fn is None:
            return None
        starts.append(root.grad_fn)
    first = _walk(starts, context)
    if first is None:
        return None
    latency = _latencies.of(tuple(first.kinds))
    is_short = latency.expected() < LOOP_SECONDS
    if first.waiting is None:
        return Graph(latency, is_short, first.leaves, first.calls)
    sending = first.waiting.next_functions[0][0]
    # Further inputs are tokens.
    if first.is_chained or not isinstance(sending, SENDING):
        return None
    if len(sending.next_functions) != len(first.waiting.call.devices):
        return None
    rest = _walk([node for node, _ in sending.next_functions], context)
    if rest is None or rest.waiting is not None or rest.is_chained or rest.leaves:
        return None
    if not first.seen.isdisjoint(rest.seen):
        return None
    edges = [GradientEdge(*edge) for edge in sending.next_functions]
    second = Second(_latencies.of(tuple(rest.kinds)), first.waiting.call, edges)
    is_short = is_short and second.latency.expected() < LOOP_SECONDS
    ends = [GradientEdge(node, 0) for node in first.ends]
    return Graph(latency, is_short, first.leaves, [*first.calls, *rest.calls], ends, second)


class _Part(NamedTuple):
    """A part of a graph, up to the calls that need no gradient and to one that the backward waits for.

    It is chained if it goes on through another call, because that call's inputs stay on the owner.
    """

    kinds: Sequence[type]
    leaves: Sequence[torch.Tensor]
    calls: Sequence[WayBack]
    ends: Sequence[Any]
    seen: set[Any]
    waiting: Any
    is_chained: bool


def _walk(starts: Iterable[Any], context: Pass) -> _Part | None:
    """Walks from some nodes; None if the graph is not of the kind."""
    kinds: list[type] = []
    leaves: list[torch.Tensor] = []
    calls: list[WayBack] = []
    ends: list[Any] = []
    waiting, is_chained = None, False
    stack = list(dict.fromkeys(starts))
    seen = set(stack)
    while stack:
        node = stack.pop()
        kinds.append(type(node))
        if isinstance(node, RECEIVING):
            call = node.call
            if call.context is not context:
                return None
            calls.append(call)
            ends.append(node)
            if not call.leads_on:
                continue
            if call.waits:
                if waiting is not None:
                    return None
                waiting = node
                continue
            is_chained = True
        elif isinstance(node, ACCUMULATING):
            leaf = node.variable
            if leaf._backward_hooks or leaf._post_accumulate_grad_hooks or _is_in_a_group():
                return None
            leaves.append(leaf)
            ends.append(node)
            continue
        elif isinstance(node, BackwardCFunction) and not isinstance(node, SENDING):
            return None
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
        if len(seen) > _MOST_NODES:
            return None
    return _Part(kinds, leaves, calls, ends, seen, waiting, is_chained)


def whole_graph(roots: Iterable[torch.Tensor], context: Pass) -> Graph:
    """What any backward reaches, which may wait and take long. `InvalidArgumentError` for reentrant checkpoints."""
    leaves, calls = reached_from(roots)
    return Graph(None, False, leaves, [call for call in calls if call.context is context])


def reached_from(roots: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], list[Any]]:
    """The leaves that a backward reaches, and each call's `WayBack`.

    `InvalidArgumentError` for reentrant checkpoints.
    """
    leaves, nodes = autograd_graph.reached_from(roots, (RECEIVING, _REENTRANT))
    if any(isinstance(node, _REENTRANT) for node in nodes):
        raise InvalidArgumentError(
            "torch.utils.checkpoint with use_reentrant=True runs a backward of its own, and its gradients would not "
            "belong to the context; call it with use_reentrant=False"
        )
    return [leaf for leaf in leaves if leaf is not ROOT], [node.call for node in nodes]


def _is_in_a_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
