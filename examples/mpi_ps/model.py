"""The network of the example, and its loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.mpi_ps.data import Digits, digits
from ps_service import hosted


@hosted
class Net(nn.Module):
    """Three linear layers: 301,066 parameters, so that a gradient has 1.2 MB.

    With ReLU, rounding in the last bit would now and then switch a unit, and two exact trainings would drift apart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


def loss_of(net: nn.Module, batch: Digits) -> Tensor:
    """The mean loss over a batch."""
    return functional.cross_entropy(net(batch.images), batch.labels)


def test(net: nn.Module) -> tuple[float, float]:
    """The mean loss over the test digits, and the part of them that is recognized."""
    _, held_out = digits()
    with torch.no_grad():
        logits = net(held_out.images)
        loss = functional.cross_entropy(logits, held_out.labels)
        return float(loss), float((logits.argmax(1) == held_out.labels).float().mean())
