"""Distributed autograd, with the names of `torch.distributed.autograd`.

with autograd.context() as context_id:
    loss = rpc.rpc_sync("ps", forward, args=(x,)).sum()
    autograd.backward(context_id, [loss])
    optimizer.step(context_id)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from ps_wire.refs import ContextId
from trainer_client.context import Context
from trainer_client.rpc.current import agent

_NUMBER_BYTES: Final = 8

_open: Final[dict[int, Context]] = {}


@contextmanager
def context() -> Iterator[int]:
    """Opens a pass: calls inside the block are recorded, and have their gradients in the pass and nowhere else.

    Gives its id, by which other processes know it too.

    Raises:
        RuntimeError: Another is open here, or this process is in no group.
    """
    opened = agent().client.context()
    number = _number(opened.id)
    with opened:
        _open[number] = opened
        try:
            yield number
        finally:
            del _open[number]


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


def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """The gradients of a pass for the tensors of this process: leaves, and parameters that it hosts.

    Raises:
        RuntimeError: Nothing is known of the pass here.
    """
    here = _open.get(context_id)
    found: dict[torch.Tensor, torch.Tensor] = dict(here.local_gradients()) if here is not None else {}
    engine = agent().engine
    hosted = engine.contexts.get(_id(context_id))
    if here is None and hosted is None:
        raise RuntimeError(f"nothing is known here of the context {context_id}")
    if hosted is not None:
        found.update({each.parameter: each.tensor for each in hosted.gradients()})
    return found


def context_of(context_id: int) -> Context:
    """The pass of that id, which must have been opened here.

    Raises:
        RuntimeError: It was not, or has ended.
    """
    try:
        return _open[context_id]
    except KeyError:
        raise RuntimeError(f"could not find an open context of the id {context_id} in this process") from None


def _number(id: ContextId) -> int:
    return int.from_bytes(id.trainer + id.number.to_bytes(_NUMBER_BYTES, "big"), "big")


def _id(number: int) -> ContextId:
    try:
        whole = number.to_bytes(16 + _NUMBER_BYTES, "big")
    except (OverflowError, AttributeError):
        raise RuntimeError(f"{number!r} is not the id of a context") from None
    return ContextId(whole[:16], int.from_bytes(whole[16:], "big"))
