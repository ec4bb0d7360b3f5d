"""The histories of values, and the end of those of tensors that a run stores for later ones.

Gradients of a recorded call propagate back to its own inputs and parameters only. So a tensor with a history that a run
has stored is replaced by an alias whose history is marked as ended. Later runs can read its values and detach it. They
are refused if they compute a result from it that a trainer would propagate through.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ps_service.hosting.replacing import Replacing
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.autograd_graph import MOST_NODES, TooManyNodes, reached_from

if TYPE_CHECKING:
    from ps_wire.refs import CallKey, ContextId

REFUSAL: Final = (
    "has computed with a tensor that an earlier call has left behind, whose history ended with that call: no gradient "
    "can go back through it. Use its detach(), or return it and give it to the next call as an argument"
)


class History(NamedTuple):
    """The recorded call that a value is a result of. `positions` has, for each tensor of the value, its position among
    the call's outputs; None if it has no history."""

    context: ContextId
    call: CallKey
    positions: tuple[int | None, ...]


class _Ended(torch.autograd.Function):
    """Marks the end of a history."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise InvalidArgumentError(f"the call {REFUSAL}")


_ANCHOR: Final = torch.empty(0, device="cpu", requires_grad=True)
"""An input that requires grad, so that torch records the node."""

ENDED: Final[Any] = _Ended._backward_cls
"""The class of the nodes at which histories end."""


def has_open_history(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a history that is not marked as ended."""
    return tensor.grad_fn is not None and not isinstance(tensor.grad_fn, ENDED)


def ended(tensor: torch.Tensor) -> torch.Tensor:
    """An alias of a tensor whose history is marked as ended. They share memory and version counter."""
    alias = tensor.detach()
    # An alias and not a view: a view that an autograd function returns cannot be written to in place.
    with torch.enable_grad(), _unsafe_preserve_version_counter(alias):
        made: torch.Tensor = _Ended.apply(alias, _ANCHOR)  # type: ignore[no-untyped-call]
    return made


def reaches_ended(roots: Iterable[Any]) -> bool:
    """Whether a backward from these roots would reach the end of a history."""
    try:
        return bool(reached_from(roots, ENDED, MOST_NODES)[1])
    except TooManyNodes:
        return False  # then its backward raises the error


def ending(known: Container[int] = ()) -> Replacing:
    """Replaces tensors with a history by aliases, except those that are `known`, by `id()`, to have had theirs before
    the run."""

    def substitute(value: Any) -> Any:
        is_meant = isinstance(value, torch.Tensor) and has_open_history(value) and id(value) not in known
        return ended(value) if is_meant else value

    return Replacing(substitute)
