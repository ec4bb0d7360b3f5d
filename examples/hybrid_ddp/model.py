"""The model: a table on the parameter server, and a layer in every trainer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from examples.hybrid_ddp.data import CLASSES
from trainer_client.nn import RemoteModule

WIDTH = 16


def dense_layer(seed: int) -> nn.Linear:
    """The layer with its initial parameters, which are equal in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(WIDTH, CLASSES)


class HybridModel(nn.Module):
    """Looks bags up on the parameter server and classifies them here.

    Args:
        table: An `nn.EmbeddingBag` on another member.
        layer: The local layer; its gradients are averaged over the trainers.
    """

    def __init__(self, table: RemoteModule, layer: nn.Linear) -> None:
        super().__init__()
        self.table = table
        self.layer = DistributedDataParallel(layer)

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """``[N]`` and ``[bags]`` int64 to scores ``[bags, CLASSES]``."""
        return self.layer(self.table.forward(indices, offsets))
