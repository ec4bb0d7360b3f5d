"""The synchronous training in one process, with batches as large as those of all trainers together."""

from __future__ import annotations

import torch
from torch import Tensor

from examples.mpi_ps.data import big_batches
from examples.mpi_ps.model import Net, loss_of
from examples.mpi_ps.settings import Settings


def train_here(settings: Settings, first: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters by name after all steps.

    Args:
        settings: The settings of the training.
        first: The parameters before the first step.
    """
    net = Net()
    net.load_state_dict(first)
    optimizer = torch.optim.SGD(net.parameters(), lr=settings.lr)
    for batch in big_batches(settings):
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()
    return dict(net.state_dict())
