"""Distributed autograd, with the names of `torch.distributed.autograd`.

with autograd.context() as context_id:
    loss = rpc.rpc_sync("ps", forward, args=(x,)).sum()
    autograd.backward(context_id, [loss])
    optimizer.step(context_id)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ps_wire.errors import ContextEndedError
from trainer_client.rpc.contexts import backward, context_of, id_of, number_of, open_contexts, unknown_context
from trainer_client.rpc.current import agent
from trainer_client.rpc.gradients import GradientsByTensor

__all__ = ["backward", "context", "context_of", "get_gradients"]


@contextmanager
def context() -> Iterator[int]:
    """Opens a context: calls inside the block are recorded, and the context holds their gradients.

    Yields:
        The id of the context, which is the same in all processes.

    Raises:
        RuntimeError: Another context is open here, or this process is in no group.
    """
    opened = agent().client.context()
    number = number_of(opened.id)
    with opened:
        open_contexts[number] = opened
        try:
            yield number
        finally:
            del open_contexts[number]


def get_gradients(context_id: int) -> dict[torch.Tensor, torch.Tensor]:
    """The gradients of a context for the tensors of this process: leaves, and parameters that it hosts.

    Returns:
        The gradients by tensor, in the shape and dtype of the tensor. In a call that uses a hosted module, the
        parameters that the code sees are its keys.

    Raises:
        RuntimeError: The context is not known in this process.
    """
    try:
        found = agent().engine.contexts.get(id_of(context_id))
    except ContextEndedError:
        raise unknown_context(context_id) from None
    if found is None and context_id not in open_contexts:
        raise unknown_context(context_id)
    return GradientsByTensor([] if found is None else found.gradients())
