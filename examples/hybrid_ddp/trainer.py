"""The function of a trainer that the master calls."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn

from examples.hybrid_ddp.data import batches
from examples.hybrid_ddp.model import HybridModel, dense_layer
from examples.hybrid_ddp.settings import Settings
from ps_service import remote
from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule
from trainer_client.optim import DistributedOptimizer

TRAINERS = 2


@remote
def run_trainer(table: RemoteModule, rank: int, settings: Settings) -> tuple[dict[str, Tensor], list[float]]:
    """Trains on this member's batches, in step with the other trainer.

    Args:
        table: The `nn.EmbeddingBag` on the parameter server.
        rank: Rank of this trainer in its process group.
        settings: Steps, seed and learning rate.

    Returns:
        The parameters of the layer by name, and the loss of each step.
    """
    layer = dense_layer(settings.seed)
    model = HybridModel(table, layer)
    parameters = table.remote_parameters() + [rpc.RRef(parameter) for parameter in model.layer.parameters()]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=settings.lr)
    losses = []
    for indices, offsets, targets in batches(settings.seed, rank, settings.steps):
        with autograd.context() as context:
            loss = nn.functional.cross_entropy(model(indices, offsets), targets)
            # The backward waits for the other trainer's gradients, so both have read the table when it ends.
            autograd.backward(context, [loss])
            for turn in range(TRAINERS):
                if turn == rank:
                    optimizer.step(context)
                # Neither trainer reads the table again before both have stepped, and they step in turn.
                distributed.barrier()
        losses.append(loss.item())
    return dict(layer.state_dict()), losses
