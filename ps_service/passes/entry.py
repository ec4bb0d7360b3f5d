"""The node at which the tensor arguments of a call enter the owner's autograd graph."""

from __future__ import annotations

from typing import Any, Final

import torch


class GraphEntry:
    """Collects the gradients of one recorded call's inputs.

    Attributes:
        token: An extra input of the node, so that `autograd.grad` propagates back to the inputs.
    """

    def __init__(self) -> None:
        self.token = torch.empty(0, requires_grad=True)
        self._gradients: tuple[torch.Tensor | None, ...] = ()

    def enter(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The same values, as outputs of one autograd node.

        They are not leaves, so that hosted code may write to its arguments in place, as to any intermediate result of
        local torch.
        """
        entered: tuple[torch.Tensor, ...] = _EntryNode.apply(self.token, self, tensors)  # type: ignore[no-untyped-call]
        return entered

    def take_gradients(self) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the last backward, one per tensor; empty if it did not reach the node."""
        gradients, self._gradients = self._gradients, ()
        return gradients


class _EntryNode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, entry: GraphEntry, tensors: list[torch.Tensor]) -> Any:
        ctx.entry = entry
        ctx.set_materialize_grads(False)
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.entry._gradients = gradients
        return torch.empty(0), None, None


ENTERING: Final[Any] = _EntryNode._backward_cls
"""The class of the entry nodes; each has its `entry`."""
