"""Distributed autograd, with the names of `torch.distributed.autograd`.

with autograd.context() as context_id:
    loss = rpc.rpc_sync("ps", forward, args=(x,)).sum()
    autograd.backward(context_id, [loss])
    optimizer.step(context_id)
"""

from trainer_client.rpc.contexts import backward, context, context_of, get_gradients

__all__ = ["backward", "context", "context_of", "get_gradients"]
