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

from trainer_client.rpc.contexts import backward, context_of, id_of, number_of, open_contexts
from trainer_client.rpc.current import agent

__all__ = ["backward", "context", "context_of", "get_gradients"]


@contextmanager
def context() -> Iterator[int]:
    """Opens a pass: calls inside the block are recorded, and have their gradients in the pass and nowhere else.

    Gives its id, by which other processes know it too.

    Raises:
        RuntimeError: Another is open here, or this process is in no group.
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
    """The gradients of a pass for the tensors of this process: leaves, and parameters that it hosts.

    Raises:
        RuntimeError: Nothing is known of the pass here.
    """
    here = open_contexts.get(context_id)
    found: dict[torch.Tensor, torch.Tensor] = dict(here.local_gradients()) if here is not None else {}
    engine = agent().engine
    hosted = engine.contexts.get(id_of(context_id))
    if here is None and hosted is None:
        raise RuntimeError(f"nothing is known here of the context {context_id}")
    if hosted is not None:
        found.update({each.parameter: each.tensor for each in hosted.gradients()})
    return found
