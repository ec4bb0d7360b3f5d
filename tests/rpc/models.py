"""Modules, objects and optimizers that members host in these tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ps_service import async_execution, hosted, remote
from trainer_client import rpc


@hosted
class Scale(nn.Module):
    """x * weight, and on another member's module if it is given one."""

    def __init__(self, weight: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weight, -weight]))

    def forward(self, x: torch.Tensor, *inner: rpc.RRef) -> torch.Tensor:
        y = x * self.weight
        for each in inner:
            y = y + each.rpc_sync().forward(x)
        return y


@hosted
class Chain(nn.Module):
    """Its own layer, and then a module of another member."""

    def __init__(self, following: rpc.RRef | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.following = following

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.layer(x))
        return y if self.following is None else self.following.rpc_sync().forward(y)


@hosted
class Fork(nn.Module):
    """Two modules of other members on the same input."""

    def __init__(self, left: rpc.RRef, right: rpc.RRef) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.left, self.right = left, right

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        calls = [self.left.rpc_async().forward(x), self.right.rpc_async().forward(x)]
        left, right = rpc.wait_all(calls)
        return left * right


@hosted
class Table(nn.Module):
    """An embedding."""

    def __init__(self, rows: int = 10, width: int = 3, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, width, sparse=sparse)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.embedding(index)


@hosted
class Lookup(nn.Module):
    """Asks another member's table, whose input has no gradient, and has parameters of its own."""

    def __init__(self, table: rpc.RRef) -> None:
        super().__init__()
        self.table = table
        self.out = nn.Linear(3, 1)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.out(self.table.rpc_sync().forward(index))


@hosted
class Plain:
    """An object that is no module, with a parameter of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.w = nn.Parameter(torch.rand(3, 3, generator=torch.Generator().manual_seed(seed)))

    @remote
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(self.w, x)

    @remote
    def parameter(self) -> rpc.RRef:
        return rpc.RRef(self.w)

    @remote
    def weight(self) -> torch.Tensor:
        return self.w.detach()


@hosted
class FailingOptimizer(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:
        raise ValueError("a step that fails")


@hosted
class FailingAtOnce(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        raise ValueError("an optimizer that cannot be made")


@hosted
class Late(nn.Module):
    @async_execution
    def forward(self, x: torch.Tensor) -> rpc.Future[torch.Tensor]:
        done: rpc.Future[torch.Tensor] = rpc.Future()
        done.set_result(x)
        return done
