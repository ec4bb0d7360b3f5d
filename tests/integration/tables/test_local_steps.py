"""Tests of local steps with a replica whose passes look up in tables: rows step in each pass, the replica by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests.training import owners

DIM, IDS = 3, torch.arange(4)


class World(NamedTuple):
    """A table, a replica that takes local steps, and both in local torch."""

    ps: tc.Client
    items: tc.Table
    replica: tc.Replica
    local: tc.LocalSteps
    rows: nn.Parameter
    net: nn.Linear

    async def loss(self) -> torch.Tensor:
        return self.loss_of(self.replica, await self.items(IDS))

    @staticmethod
    def loss_of(net: Any, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = net(rows).square().sum()
        return found


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with owners("ps0") as (server,), tc.connect(server.address) as ps:
        items = await ps.table("items", DIM, tc.tables.SGD(lr=0.1), rows=4, init=tc.tables.Normal(1.0))
        net = await ps.module("torch.nn.Linear", DIM, 2, name="net", seed=1)
        replica = await net.replica()
        local = await ps.local_steps(replica, optim.AdamW(replica.parameters(), lr=0.1), tc.LocalSGD(2))
        own = nn.Linear(DIM, 2)
        own.load_state_dict(await net.state_dict())
        yield World(ps, items, replica, local, nn.Parameter((await items(IDS)).clone()), own)


@pytest.mark.parametrize("scales", [False, True])
async def test_rows_step_in_each_pass_and_the_replica_by_itself(world: World, scales: bool) -> None:
    opts = [optim.SGD([world.rows], lr=0.1), optim.AdamW(world.net.parameters(), lr=0.1)]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=scales)
    for number in range(4):
        for opt in opts:
            opt.zero_grad()
        world.loss_of(world.net, world.rows).backward()
        for opt in opts:
            opt.step()
        async with world.ps.context() as ctx:
            await ctx.backward(scaler.scale(await world.loss()))
            await world.items.optimizer.step(ctx, scaler)
            stepped = await world.local.step(context=ctx, scaler=scaler if scales else None)
            assert all(ctx.gradient(each) is None and each.grad is None for each in world.replica.parameters())
        scaler.update()
        assert (stepped is not None) == (number % 2 == 1)
        torch.testing.assert_close(await world.items(IDS), world.rows.detach())
        for mine, theirs in zip(world.replica.parameters(), world.net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)


async def test_a_step_beside_the_pass_that_has_the_gradients_is_refused(world: World) -> None:
    before = [each.clone() for each in world.replica.parameters()]
    async with world.ps.context() as ctx:
        loss = await world.loss()
        running = ctx.backward(loss)
        with pytest.raises(tc.errors.InvalidArgumentError, match="has not ended"):
            world.local.step(context=ctx)
        await running
        with pytest.raises(tc.errors.InvalidArgumentError, match="context=ctx"):
            world.local.step()
        with pytest.raises(tc.errors.InvalidArgumentError, match="closure"):
            world.local.step(lambda: loss, context=ctx)
        several = world.ps.replicas(nn.Sequential(await world.replica.source.replica()))
        more = several.local_steps(optim.SGD(several.parameters(), lr=0.1), world.local.optimizer, every=2)
        await ctx.backward(several(await world.items(IDS)).sum())
        with pytest.raises(tc.errors.InvalidArgumentError, match="context=ctx"):
            more.step()
    with pytest.raises(tc.errors.ContextEndedError):
        world.local.step(context=ctx)
    assert world.local.steps == 0
    assert all(torch.equal(*pair) for pair in zip(world.replica.parameters(), before, strict=True))
