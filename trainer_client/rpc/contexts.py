"""The contexts of `trainer_client.autograd` that are open in this process, and the ids that programs use for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

import torch
from torch.autograd.profiler import record_function

from ps_wire.codec.names import full_name
from ps_wire.errors import remote_error
from ps_wire.refs import ContextId
from trainer_client.rpc.current import agent
from trainer_client.session.watched import is_profiled

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context

_NUMBER_BYTES: Final = 8

_IN_PROFILES: Final = "torch::distributed::autograd::backward"
"""The name of a backward in profiles, as in torch."""

open_contexts: Final[dict[int, Context]] = {}
"""The open contexts, by id."""


def backward(context_id: int, roots: Sequence[torch.Tensor], retain_graph: bool = False) -> None:
    """Propagates from losses through the local and remote operations that computed them.

    Gradients accumulate in the context; `.grad` is not changed.

    Args:
        context_id: The id of the context.
        roots: The losses, each with one element.
        retain_graph: Whether to keep the graph for another backward.

    Raises:
        TypeError: `context_id` is no number, or `roots` is no list of tensors.
        RuntimeError: No such context is open here, or a root does not require grad or has several elements; or a
            backward of torch or of an owner raised an exception. It is also an instance of the type of that.
    """
    if not isinstance(context_id, int) or isinstance(context_id, bool):
        raise TypeError(
            "incompatible function arguments: context_id must be the number that context() yields, not a "
            f"{type(context_id).__name__}"
        )
    if not isinstance(roots, Sequence) or not all(isinstance(root, torch.Tensor) for root in roots):
        raise TypeError("incompatible function arguments: backward() takes a list of tensors")
    context = context_of(context_id)
    if not roots:
        raise RuntimeError("No tensors provided for gradient computation: backward() got an empty list of roots")
    for root in roots:
        if not root.requires_grad:
            raise RuntimeError(
                "requires_grad not set on a root: it does not require grad; compute it from tensors that do, inside "
                "the context"
            )
        if root.numel() != 1:
            raise RuntimeError(f"a root of shape {tuple(root.shape)} is not a scalar, all roots need to be scalar")
        if root.grad_fn is None:
            raise RuntimeError(
                "a root does not have a valid gradient function: nothing has computed it; compute it from other "
                "tensors, inside the context"
            )
    try:
        with record_function(_IN_PROFILES) if is_profiled() else nullcontext():
            context.propagate(roots, None, retain_graph)
    except RuntimeError:
        raise
    except Exception as error:
        # In torch, too, every error of a distributed backward is a RuntimeError.
        text = f"Error on Node {agent().member.id}: {error}"
        raise remote_error(text, full_name(type(error)), kind=type(error)) from error


def context_of(context_id: int) -> Context:
    """The context of that id, which must have been opened in this process.

    Raises:
        RuntimeError: It was not opened here, or has ended.
    """
    try:
        return open_contexts[context_id]
    except KeyError:
        raise unknown_context(context_id) from None


def unknown_context(number: int) -> RuntimeError:
    """The error for an id of no open context, as torch words it."""
    return RuntimeError(
        f"Could not find autograd context with id: {number}. It has ended, or was never used in this process"
    )


def number_of(id: ContextId) -> int:
    """The id of a context as programs use it, the same in all processes."""
    return int.from_bytes(id.trainer + id.number.to_bytes(_NUMBER_BYTES, "big"), "big")


def id_of(number: int) -> ContextId:
    """The inverse of `number_of`; `RuntimeError` if the number is not the id of a context."""
    try:
        whole = number.to_bytes(16 + _NUMBER_BYTES, "big")
    except (OverflowError, AttributeError):
        raise unknown_context(number) from None
    return ContextId(whole[:16], int.from_bytes(whole[16:], "big"))
