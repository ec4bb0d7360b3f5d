"""The network of the example."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.batched_updates.data import digits


def network(seed: int) -> nn.Sequential:
    """The network with its initial parameters, which are equal in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def gradients_of(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradients of the mean loss over a batch, by the names of the parameters."""
    loss = nn.functional.cross_entropy(model(images), labels)
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def apply_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, gradients: dict[str, Tensor]) -> None:
    """One step of an optimizer with gradients that were computed elsewhere."""
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    optimizer.step()


def loss_of(parameters: dict[str, Tensor]) -> float:
    """The mean loss over all digits with these parameters."""
    model = network(0)
    model.load_state_dict(parameters)
    images, labels = digits()
    with torch.no_grad():
        return nn.functional.cross_entropy(model(images), labels).item()
