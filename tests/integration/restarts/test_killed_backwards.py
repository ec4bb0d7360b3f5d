"""What code of a backward writes to buffers is there when an owner that was killed starts again."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service import hosted
from ps_service.hosting.objects import SHORT_CALLS
from tests.integration.restarting import Owner
from tests.integration.support import bits

CALLS = SHORT_CALLS + 4
"""Enough for some that run in other ways than the first."""


class Counting(torch.autograd.Function):
    """Counts its backwards in a tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        ctx.count = count
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.count.add_(1)
        return gradient, None


class Counted(nn.Module):
    """A layer with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


@hosted
class WithFunction(Counted):
    """Writes in the backward of a function."""

    def forward(self, x: torch.Tensor) -> Any:
        return Counting.apply(super().forward(x), self.count)  # type: ignore[no-untyped-call]


@hosted
class WithHook(Counted):
    """Writes in a hook of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.register_full_backward_hook(WithHook.counted)

    @staticmethod
    def counted(module: Any, of_inputs: Any, of_outputs: Any) -> None:
        module.count += 1


@hosted
class WithHookOfTensor(Counted):
    """Writes in a hook of what it computes."""

    def forward(self, x: torch.Tensor) -> Any:
        made = super().forward(x)
        made.register_hook(self.counted)
        return made

    def counted(self, gradient: torch.Tensor) -> None:
        self.count = self.count + 1


@hosted
class WithHookOfParameter(Counted):
    """Writes in a hook of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer.weight.register_hook(self.counted)

    def counted(self, gradient: torch.Tensor) -> None:
        self.count += 1


@hosted
class WithExtraState(Counted):
    """Writes to what is in its extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.register_full_backward_hook(WithExtraState.counted)

    @staticmethod
    def counted(module: Any, of_inputs: Any, of_outputs: Any) -> None:
        module.seen += 1

    def get_extra_state(self) -> Any:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, modules=[sys.modules[__name__]], durability="always") as made:
        yield made


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize(
    "kind", ["WithFunction", "WithHook", "WithHookOfTensor", "WithHookOfParameter", "WithExtraState"]
)
async def test_buffers_that_a_backward_writes_are_there(owner: Owner, ps: tc.Client, kind: str, steps: bool) -> None:
    net = await ps.module(f"{__name__}.{kind}", name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    for _ in range(CALLS):
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 2, requires_grad=True))).sum(), step=opt if steps else None)
    written = await net.state_dict()
    assert float(written.pop("_extra_state", written["count"])) == CALLS
    await owner.crash()
    again = await net.state_dict()
    assert float(again.pop("_extra_state", written["count"])) == CALLS
    assert bits(again) == bits(written)
