"""The model: a table that is elsewhere, and a layer that every trainer has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from examples.hybrid_ddp.data import CLASSES
from trainer_client.nn import RemoteModule

WIDTH = 16


def dense_layer(seed: int) -> nn.Linear:
    """The layer as it is before the first step, the same in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(WIDTH, CLASSES)


class HybridModel(nn.Module):
    """Looks bags up on the parameter server and classifies them here.

    Args:
        table: An `nn.EmbeddingBag` that another member holds.
        layer: The layer here; its gradients are averaged over the trainers.
    """

    def __init__(self, table: RemoteModule, layer: nn.Linear) -> None:
        super().__init__()
        self.table = table
        self.layer = DistributedDataParallel(layer)

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """``[N]`` and ``[bags]`` int64 to scores ``[bags, CLASSES]``."""
        return self.layer(self.table.forward(indices, offsets))
