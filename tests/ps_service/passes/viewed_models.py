"""Modules whose calls may run on views, or that try to hinder it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Tied(nn.Module):
    """Calls a function in the middle of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.a, self.b = nn.Embedding(20, 8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.a(self.table(ids)))
        meanwhile()
        return self.out(torch.tanh(self.b(h)))


class Penalty(nn.Module):
    """Differentiates in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.a = nn.Embedding(20, 8), nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        y = torch.tanh(self.a(x))
        meanwhile()
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y + slope.square().sum(-1, keepdim=True)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm, self.out = nn.Embedding(20, 8), nn.LSTM(8, 12, 2), nn.Linear(12, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.lstm(self.table(ids).unsqueeze(1))[0].squeeze(1)
        meanwhile()
        return self.out(h)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.table(ids))
        meanwhile()
        return self.out(torch.relu(h))


class Checkpointed(nn.Module):
    """Computes its first layer again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.a, self.b = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = checkpoint(self.a, self.table(ids), use_reentrant=False)
        meanwhile()
        return self.b(torch.tanh(h))


class Hooked(nn.Module):
    """Reads a parameter in a hook of its backward, and saves none."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(20, 8), nn.Parameter(torch.full((8,), 3.0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.table(ids)
        meanwhile()
        h.register_hook(lambda gradient: gradient * self.scale)
        return h * 2


class Keeping(nn.Module):
    """Has an autograd function of its own, which keeps a parameter as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(20, 8), nn.Parameter(torch.ones(8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return _Scaled.apply(self.table(ids), self.scale)  # type: ignore[no-untyped-call, no-any-return]


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.scale = scale
        ctx.save_for_backward(x)
        return x * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * ctx.scale, (gradients[0] * x).sum(0)


KEEP_PARTS = (Checkpointed, Hooked, Keeping)
"""Their graphs refer to layers or parameters, so that they do not run on views unless they have to."""

ALL = [Tied, Penalty, Recurrent, Normed, *KEEP_PARTS]

pauses = threading.local()


def meanwhile() -> None:
    """What other threads do in the middle of a forward."""
    during: Callable[[], object] | None = getattr(pauses, "during", None)
    if during is not None:
        pauses.during = None
        during()


class Switching(nn.Module):
    """Does something else than before once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls, self.seen = nn.Linear(3, 3), 0, torch.zeros(1)
        self.what = ["nothing"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        meanwhile()
        match self.what[0]:
            case "count":
                self.calls += 1
            case "delete":
                del self.calls
            case "clamp":
                with torch.no_grad():
                    self.layer.weight.clamp_(max=0)
            case "data":
                self.layer.weight.data.clamp_(max=0)
            case "move":
                self.layer.weight.data = torch.zeros(3, 3)
            case "freeze":
                self.layer.weight.requires_grad_(False)
            case "hook":
                self.layer.weight.register_hook(lambda gradient: gradient * 2)
            case "backward":
                self.layer(x).sum().backward()
            case "restructure":
                self.more = nn.Linear(1, 1)
            case "alias":
                self.seen = self.layer.weight.detach()
            case "shape":
                found: torch.Tensor = self.layer(x)
                self.layer.weight.data = torch.zeros(2, 3)
                return found
            case "parameter":
                return x @ nn.Parameter(self.layer.weight)
            case "history":
                self.seen = self.layer(x)
        result: torch.Tensor = self.layer(x)
        return result

    def again(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)
