"""The contexts of `trainer_client.autograd` that are open in this process, by the numbers that name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ps_wire.refs import ContextId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer_client.contexts.context import Context

_NUMBER_BYTES: Final = 8

open_contexts: Final[dict[int, Context]] = {}
"""By number."""


def backward(context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool = False) -> None:
    """Propagates from losses through everything that was computed for them, wherever that was.

    Gradients are added up in the pass; `.grad` is left alone.

    Args:
        context_id: The pass.
        roots: The losses, each of one element.
        retain_graph: Whether the same graph shall be propagated again.

    Raises:
        RuntimeError: There is no such pass open here, a root cannot be propagated from, or torch's own.
        PsError: An owner could not do its part.
    """
    if not isinstance(context_id, int) or isinstance(context_id, bool):
        raise TypeError(f"a context is named by the number that context() gives, not by a {type(context_id).__name__}")
    if isinstance(roots, torch.Tensor) or not all(isinstance(root, torch.Tensor) for root in roots):
        raise TypeError("backward() takes a list of tensors")
    if not roots:
        raise RuntimeError("no tensors were given to propagate from")
    for root in roots:
        if not root.requires_grad:
            raise RuntimeError("a root does not require grad: nothing that was computed for it can be propagated to")
        if root.numel() != 1:
            raise RuntimeError(f"roots are losses of one element; one has the shape {tuple(root.shape)}")
    context_of(context_id).propagate(roots, None, retain_graph)


def context_of(context_id: int) -> Context:
    """The pass of that id, which must have been opened here.

    Raises:
        RuntimeError: It was not, or has ended.
    """
    try:
        return open_contexts[context_id]
    except KeyError:
        raise RuntimeError(f"could not find an open context of the id {context_id} in this process") from None


def number_of(id: ContextId) -> int:
    """The number by which other processes know a context."""
    return int.from_bytes(id.trainer + id.number.to_bytes(_NUMBER_BYTES, "big"), "big")


def id_of(number: int) -> ContextId:
    """The context that a number names.

    Raises:
        RuntimeError: It names none.
    """
    try:
        whole = number.to_bytes(16 + _NUMBER_BYTES, "big")
    except (OverflowError, AttributeError):
        raise RuntimeError(f"{number!r} is not the id of a context") from None
    return ContextId(whole[:16], int.from_bytes(whole[16:], "big"))
