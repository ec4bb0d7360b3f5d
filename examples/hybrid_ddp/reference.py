"""The same job in one process, with torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.hybrid_ddp.data import Batch, batches
from examples.hybrid_ddp.model import dense_layer
from examples.hybrid_ddp.settings import Settings
from examples.hybrid_ddp.trainer import TRAINERS


def train_here(weight: Tensor, settings: Settings) -> tuple[dict[str, Tensor], list[list[float]]]:
    """Computes what the trainers together do to the table and the layer.

    In every step all losses are computed from the same values. The layer is then stepped once, with the mean of the
    gradients, as `DistributedDataParallel` does. The table is stepped once for each trainer.

    Args:
        weight: The table before the first step, ``[EMBEDDINGS, WIDTH]``; it is not changed.
        settings: Steps, seed and learning rate.

    Returns:
        All parameters by name, and the losses of each trainer.
    """
    table = nn.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode="sum", sparse=True)
    layer = dense_layer(settings.seed)
    parameters = [table.weight, *layer.parameters()]
    on_table = torch.optim.SGD([table.weight], lr=settings.lr)
    on_layer = torch.optim.SGD(layer.parameters(), lr=settings.lr)

    def loss_of(batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(layer(table(batch.indices, batch.offsets)), batch.targets)

    losses: list[list[float]] = [[] for _ in range(TRAINERS)]
    for step in zip(*(batches(settings.seed, rank, settings.steps) for rank in range(TRAINERS)), strict=True):
        found = [loss_of(batch) for batch in step]
        of_table, *of_layer = zip(*(torch.autograd.grad(loss, parameters) for loss in found), strict=True)
        for parameter, gradients in zip(layer.parameters(), of_layer, strict=True):
            parameter.grad = torch.stack(gradients).mean(0)
        on_layer.step()
        for gradient in of_table:
            table.weight.grad = gradient
            on_table.step()
        for told, loss in zip(losses, found, strict=True):
            told.append(loss.item())
    return {"table": table.weight.detach(), **layer.state_dict()}, losses
