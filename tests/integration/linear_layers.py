"""Linear layers on owners and in this process, for the tests of backwards with steps."""

from __future__ import annotations

import torch
from torch import nn

import trainer_client as tc
from ps_service.server import Server
from tests.training import MODELS, twin


async def linear(ps: tc.Client, owner: str = "ps0", cls: str = "torch.nn.Linear") -> tuple[tc.RemoteModule, nn.Module]:
    """A linear layer on an owner, and the same here."""
    remote = await ps.module(cls, 3, **({} if cls.startswith(MODELS) else {"out_features": 3}), owner=owner)
    return remote, await twin(remote, nn.Linear(3, 3) if cls.startswith("torch") else Wrapped())


class Wrapped(nn.Module):
    """What `Explodes` is here."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def steps(server: Server) -> int:
    """How many steps an owner has answered."""
    counted = server.engine.counters.operations().get("step")
    return 0 if counted is None else counted.durations.count


X = torch.arange(6.0).reshape(2, 3) / 7
