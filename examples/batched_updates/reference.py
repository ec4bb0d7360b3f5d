"""The same training in one process, with batches as large as those of all trainers together."""

from __future__ import annotations

import torch
from torch import Tensor

from examples.batched_updates.data import big_batches
from examples.batched_updates.model import apply_gradients, gradients_of, network
from examples.batched_updates.settings import Settings


def train_here(settings: Settings) -> dict[str, Tensor]:
    """The parameters by name after all steps."""
    model = network(settings.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    for images, labels in big_batches(settings):
        apply_gradients(model, optimizer, gradients_of(model, images, labels))
    return dict(model.state_dict())
