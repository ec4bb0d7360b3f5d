"""The graphs that values bring into passes: those of tensors that no call of the pass has computed.

Several calls of a pass may use such a value, and the backward of each goes through its graph. Torch frees a graph with
the first backward that does not retain it. So backwards keep it as long as others of the pass may come, and the last
one frees it: another pass is refused then, as in torch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from weakref import WeakSet

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ps_wire.codec.trees import parts_of

if TYPE_CHECKING:
    from ps_wire.refs import ContextId

_LOCK: Final = threading.Lock()


class Root(NamedTuple):
    """Where the graph of a tensor begins, and zeros in the shape of the tensor, with the memory of one number."""

    edge: GradientEdge
    zeros: torch.Tensor


class ValueGraph:
    """The graph of one hosted value, with the calls whose backwards may still go through it. It is `kept_for` a pass if
    a backward of that would have freed it."""

    def __init__(self) -> None:
        self.users: WeakSet[GraphUse] = WeakSet()
        self.kept_for: ContextId | None = None


class _Hosted(Protocol):
    """What is needed of a hosted object."""

    graph: ValueGraph | None


class GraphUse:
    """The use of the graphs of some values by one call of a pass, from the time when the call gets them."""

    def __init__(self, context: ContextId) -> None:
        self._context = context
        self._graphs: list[tuple[ValueGraph, list[Root]]] = []

    def add(self, hosted: _Hosted, tensors: list[torch.Tensor]) -> None:
        """The call uses the graphs of these tensors of an object, too."""
        roots = [
            Root(get_gradient_edge(each), torch.zeros((), dtype=each.dtype, device=each.device).expand(each.shape))
            for each in tensors
        ]
        with _LOCK:
            if hosted.graph is None:
                hosted.graph = ValueGraph()
            self._graphs.append((hosted.graph, roots))
            hosted.graph.users.add(self)

    def keeps(self) -> bool:
        """Whether a backward of the call has to keep the graphs, although it is not asked to."""
        with _LOCK:
            is_shared = any(self._is_shared(graph) for graph, _ in self._graphs)
            for graph, _ in self._graphs:
                graph.kept_for = self._context if is_shared else None
            return is_shared

    def end(self) -> list[Root]:
        """The backward of the call has gone through the graphs. Returns the roots of those that were kept for others of
        the pass, of which none will come any more."""
        found = []
        with _LOCK:
            for graph, roots in self._graphs:
                graph.users.discard(self)
                if graph.kept_for == self._context and not self._is_shared(graph):
                    graph.kept_for = None
                    found += roots
        return found

    def _is_shared(self, graph: ValueGraph) -> bool:
        return any(user is not self and user._context == self._context for user in graph.users)


def with_graph(value: Any) -> list[torch.Tensor]:
    """The dense tensors with a graph in a value that is one, or a container of some."""
    if not isinstance(value, (torch.Tensor, list, tuple, dict)):
        return []
    tensors = [part for part in parts_of(value) if isinstance(part, torch.Tensor)]
    return [each for each in tensors if each.grad_fn is not None and each.layout is torch.strided]
