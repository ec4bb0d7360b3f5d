"""Training a hosted module and its local twin side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from tests import (
    hooked_modules,
    odd_modules,
    odd_structure,
    parameter_modules,
    restructuring_modules,
    stateful_modules,
)
from tests.allowed import allowed
from tests.training import same_gradients, same_state, twin

MODELS = "tests.odd_modules"
MODULES = [
    odd_modules,
    odd_structure,
    hooked_modules,
    stateful_modules,
    parameter_modules,
    restructuring_modules,
]
"""The modules that an owner imports whose classes are unusual."""


@asynccontextmanager
async def training() -> AsyncIterator[tuple[Server, tc.Client]]:
    """An owner of modules that are unusual, and a trainer."""
    server = Server(Engine("ps0", allowed(*MODULES), threads=4))
    await server.start()
    try:
        async with tc.connect(server.address) as ps:
            yield server, ps
    finally:
        await server.stop()


async def beside_local(
    cls: str, args: tuple[Any, ...], passes: int = 3, models: ModuleType = odd_modules, ps: tc.Client | None = None
) -> None:
    """Trains a few passes and compares every gradient and every parameter; by itself, if no trainer is given.

    Raises:
        AssertionError: Something differs.
    """
    async with AsyncExitStack() as stack:
        if ps is None:
            _, ps = await stack.enter_async_context(training())
        net = await ps.module(f"{models.__name__}.{cls}", *args)
        local = await twin(net, getattr(models, cls)(*args))
        await train_both(ps, net, local, passes)


async def train_both(ps: tc.Client, net: Any, local: nn.Module, passes: int = 3) -> None:
    """The same passes, remote and local."""
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    local_opt = torch.optim.SGD(local.parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(0)
    for number in range(passes):
        ours = torch.randn(3, odd_modules.SIZE, generator=rows).requires_grad_()
        theirs = ours.detach().clone().requires_grad_()
        local_opt.zero_grad()
        async with ps.context() as ctx:
            loss = (await net(ours)).square().sum()
            wanted = local(theirs).square().sum()
            torch.testing.assert_close(loss, wanted, msg=f"pass {number}")
            await ctx.backward(loss)
            wanted.backward()
            await same_gradients(ctx, [(net, local)], {"input": (ours, theirs)})
            await opt.step(ctx)
            local_opt.step()
        await same_state(net, local)
