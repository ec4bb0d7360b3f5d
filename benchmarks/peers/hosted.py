"""The object that gRPC with pickle and Ray host: arrays in, arrays out, and a whole step of training in one call."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import data, jobs
from benchmarks.models import ChannelsLastNet, Net, NeuMF
from benchmarks.nets import TwoLinears

LOSSES = {"bags": data.bag_loss, "images": F.nll_loss, "points": jobs.loss}


class Owner:
    """Modules by name, each with an optimizer. Arrays of numpy cross the wire, the fastest for pickle and Ray."""

    def __init__(self) -> None:
        self._modules: dict[str, nn.Module] = {}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._outputs: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()

    def table(self, name: str, rows: int, dim: int, lr: float) -> None:
        """Makes an embedding table, if there is none of that name."""
        with self._lock:
            if name not in self._modules:
                torch.manual_seed(data.MODEL_SEED)
                self._add(name, nn.EmbeddingBag(rows, dim, mode="sum", sparse=True), lr)

    def net(self, name: str, lr: float, channels_last: bool) -> None:
        """Makes the ConvNet, and seeds its dropout."""
        torch.manual_seed(data.MODEL_SEED)
        self._add(name, ChannelsLastNet() if channels_last else Net(), lr)
        torch.manual_seed(data.OWNER_SEED)

    def linears(self, name: str, *args: int) -> None:
        """Makes two linear layers."""
        torch.manual_seed(data.MODEL_SEED)
        self._add(name, TwoLinears(*args), jobs.LR)

    def recommender(self, name: str) -> None:
        """Makes the recommender, with Adagrad."""
        torch.manual_seed(data.MODEL_SEED)
        net = self._modules[name] = NeuMF(*astuple(data.RECOMMENDER))
        self._optimizers[name] = torch.optim.Adagrad(net.parameters(), **data.ADAGRAD)

    def _add(self, name: str, module: nn.Module, lr: float) -> None:
        self._modules[name] = module
        self._optimizers[name] = torch.optim.SGD(module.parameters(), lr=lr)

    def drop(self, name: str) -> None:
        """Frees a module."""
        with self._lock:
            self._modules.pop(name, None)
            self._optimizers.pop(name, None)

    def echo(self, payload: np.ndarray) -> np.ndarray:
        """Sends an array back."""
        return payload

    def forward(self, name: str, x: np.ndarray) -> np.ndarray:
        """A forward without gradients."""
        with torch.no_grad():
            return self._modules[name](torch.from_numpy(x)).numpy()

    def step(self, name: str, loss: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Forward, backward and a step of the optimizer; returns the loss."""
        self._optimizers[name].zero_grad()
        found = LOSSES[loss](self._modules[name](torch.from_numpy(x)), torch.from_numpy(y))
        found.backward()
        self._optimizers[name].step()
        return found.detach().numpy()

    def outputs(self, name: str, x: np.ndarray) -> np.ndarray:
        """A forward, which `learn` goes back through."""
        self._outputs[name] = self._modules[name](torch.from_numpy(x))
        return self._outputs[name].detach().numpy()

    def learn(self, name: str, gradient: np.ndarray) -> None:
        """Backward through the last `outputs`, and a step of the optimizer."""
        self._optimizers[name].zero_grad()
        self._outputs.pop(name).backward(torch.from_numpy(gradient))
        self._optimizers[name].step()

    def state(self, name: str) -> Mapping[str, Any]:
        """A module's state, as arrays."""
        return {key: value.numpy() for key, value in self._modules[name].state_dict().items()}
