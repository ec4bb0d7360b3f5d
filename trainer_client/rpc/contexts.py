"""The functions of `trainer_client.autograd`: contexts by the ids that programs use for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import torch
from torch.autograd.profiler import record_function

from ps_wire.codec.names import full_name
from ps_wire.errors import ContextEndedError, remote_error
from ps_wire.refs import ContextId
from trainer_client.rpc.current import agent
from trainer_client.rpc.gradients import GradientsByTensor
from trainer_client.session.watched import is_profiled

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context

_NUMBER_BYTES: Final = 8

_IN_PROFILES: Final = "torch::distributed::autograd::backward"
"""The name of a backward in profiles, as in torch."""

_open: Final[dict[int, Context]] = {}
"""The open contexts, by id."""


@contextmanager
def context() -> Iterator[int]:
    """Opens a context: calls inside the block are recorded, and the context holds their gradients.

    Yields:
        The id of the context, which is the same in all processes.

    Raises:
        RuntimeError: Another context is open here, or this process is in no group.
    """
    opened = agent().client.context()
    number = int.from_bytes(opened.id.trainer + opened.id.number.to_bytes(_NUMBER_BYTES, "big"), "big")
    with opened:
        _open[number] = opened
        try:
            yield number
        finally:
            del _open[number]


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
        return _open[context_id]
    except KeyError:
        raise _unknown(context_id) from None


def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """The gradients of a context for the tensors of this process: leaves, and parameters that it hosts.

    Returns:
        The gradients by tensor, in the shape and dtype of the tensor. In a call that uses a hosted module, the
        parameters that the code sees are its keys.

    Raises:
        RuntimeError: The context is not known in this process.
    """
    try:
        found = agent().engine.contexts.get(_id_of(context_id))
    except ContextEndedError:
        raise _unknown(context_id) from None
    if found is None and context_id not in _open:
        raise _unknown(context_id)
    return GradientsByTensor([] if found is None else found.gradients())


def _unknown(number: int) -> RuntimeError:
    """The error for an id of no open context, as torch words it."""
    return RuntimeError(
        f"Could not find autograd context with id: {number}. It has ended, or was never used in this process"
    )


def _id_of(number: int) -> ContextId:
    """The context of a number that `context` yields in any process; `RuntimeError` if it is none."""
    try:
        whole = number.to_bytes(16 + _NUMBER_BYTES, "big")
    except (OverflowError, AttributeError):
        raise _unknown(number) from None
    return ContextId(whole[:16], int.from_bytes(whole[16:], "big"))
