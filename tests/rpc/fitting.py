"""A server that steps with the gradients of all trainers, and sends them its whole model."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ps_service import by_value, hosted, remote
from trainer_client import rpc

TRAINERS = ("worker1", "worker2")
STEPS = 3


class Line(nn.Linear):
    """One layer."""


by_value(make=lambda: Line(2, 1))(Line)


def batches(trainer: str) -> list[Tensor]:
    """The inputs of a trainer, ``[4, 2]`` each."""
    generator = torch.Generator().manual_seed(TRAINERS.index(trainer))
    return [torch.randn(4, 2, generator=generator) for _ in range(STEPS)]


@hosted
class Server:
    """The model, and what has arrived for its next step."""

    def __init__(self, model: Line) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.lock = threading.Lock()
        self.stepped: Any = torch.futures.Future()
        self.arrived: list[list[Tensor]] = []

    @remote
    def get_model(self) -> Line:
        return self.model

    @staticmethod
    @remote
    @rpc.functions.async_execution
    def update_and_fetch_model(server: rpc.RRef, gradients: list[Tensor]) -> Any:
        self = server.local_value()
        with self.lock:
            self.arrived.append(gradients)
            stepped = self.stepped
            if len(self.arrived) == len(TRAINERS):
                self.step()
                self.stepped = torch.futures.Future()
                stepped.set_result(self.model)
        return stepped

    def step(self) -> None:
        """Steps with the mean of what has arrived."""
        for parameter, *gradients in zip(self.model.parameters(), *self.arrived, strict=True):
            parameter.grad = torch.stack(gradients).mean(0)
        self.arrived = []
        self.optimizer.step()


@remote
def train(server: rpc.RRef) -> int:
    """Trains until the batches of this member are used up; returns the number of its parameters."""
    model = server.rpc_sync().get_model()
    for x in batches(rpc.get_worker_info().name):
        model(x).square().mean().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        model = rpc.rpc_sync(server.owner(), Server.update_and_fetch_model, args=(server, gradients))
    return len(list(model.parameters()))


@remote
def halved(state: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """An array as an argument and as a result."""
    state /= 2
    return state


@remote
def optimizer_of(rrefs: list[rpc.RRef], lr: float) -> torch.optim.SGD:
    """An optimizer for parameters of this member."""
    return torch.optim.SGD([rref.to_here() for rref in rrefs], lr=lr)


@remote
def set_gradient(rref: rpc.RRef, value: float) -> None:
    rref.local_value().grad = torch.full_like(rref.local_value(), value)


@remote
def new_weight() -> nn.Parameter:
    return nn.Parameter(torch.zeros(2))
