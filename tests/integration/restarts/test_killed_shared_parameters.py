"""Optimizers that share parameters step one after the other, also on an owner with a log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.integration.restarts.test_killed import batch
from tests.integration.support import bits


@pytest.fixture(params=["off", "always"])
async def owner(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, durability=request.param) as made:
        yield made


async def trained(owner: Owner, ps: tc.Client, first: Any, second: Any, policy: Any) -> None:
    """Steps two optimizers of all parameters, and compares with torch."""
    net = await ps.module(nn.Linear, 4, 2, seed=1)
    options = {} if policy is None else {"policy": policy}
    opts: list[Any] = [
        await ps.optimizer(first, net.parameters(), lr=0.1),
        await ps.optimizer(second, net.parameters(), lr=0.01, **options),
    ]
    torch.manual_seed(1)
    local = nn.Linear(4, 2)
    locals_: list[Any] = [first(local.parameters(), lr=0.1), second(local.parameters(), lr=0.01)]
    for i in range(4):
        async with asyncio.timeout(30), ps.context() as ctx:
            await ctx.backward((await net(batch(i))).square().sum(), step=opts)
        local(batch(i)).square().sum().backward()
        for each in locals_:
            each.step()
        local.zero_grad()
    expected = bits([dict(local.state_dict()), *(each.state_dict() for each in locals_)])
    found = [await each.state_dict() for each in (net, *opts)]
    assert bits(found) == expected
    if owner.server.engine.durability.log is not None:
        await owner.crash()
        assert bits([await each.state_dict() for each in (net, *opts)]) == expected


@pytest.mark.parametrize(
    ("first", "second"), [(optim.SGD, optim.SGD), (optim.Adam, optim.SGD), (optim.SGD, optim.Adam)]
)
async def test_two_in_one_list(owner: Owner, ps: tc.Client, first: Any, second: Any) -> None:
    await trained(owner, ps, first, second, None)


async def test_one_with_a_policy_behind_one_without(owner: Owner, ps: tc.Client) -> None:
    await trained(owner, ps, optim.SGD, optim.SGD, tc.policies.Sync(1))
