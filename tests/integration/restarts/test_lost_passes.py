"""Passes that were open when an owner with a log was killed are lost: a step never counts a part of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.integration.support import bits
from trainer_client.session.session import Session

X = torch.ones(2, 4)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, durability="interval:60") as made:
        yield made


@pytest.fixture(params=[True, False], ids=["told", "not_told"])
async def ps(request: pytest.FixtureRequest, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tc.Client]:
    """A trainer that says which passes it had begun, or does not."""
    if not request.param:
        hello = Session.hello

        def silent(self: Session) -> Any:
            made = hello(self)
            made.ClearField("last_pass")
            return made

        monkeypatch.setattr(Session, "hello", silent)
    async with tc.connect(owner.address) as client:
        yield client


async def killed(owner: Owner) -> None:
    await owner.crash()


async def killed_behind_a_checkpoint(owner: Owner) -> None:
    await asyncio.to_thread(owner.server.engine.checkpoints.write)
    await owner.crash()


async def killed_and_stopped_before_the_trainer_is_back(owner: Owner) -> None:
    address = owner.address
    await owner.server.stop()
    owner.address = "127.0.0.1:0"
    await owner.start()
    await owner.server.drain(20.0)
    owner.address = address
    await owner.start()


async def killed_twice_with_a_checkpoint_between(owner: Owner) -> None:
    address = owner.address
    await owner.server.stop()
    owner.address = "127.0.0.1:0"
    await owner.start()
    await asyncio.to_thread(owner.server.engine.checkpoints.write)
    await owner.server.stop()
    owner.address = address
    await owner.start()


ENDS: list[Callable[[Owner], Awaitable[None]]] = [
    killed,
    killed_behind_a_checkpoint,
    killed_and_stopped_before_the_trainer_is_back,
    killed_twice_with_a_checkpoint_between,
]


@pytest.mark.parametrize("end", ENDS)
async def test_a_step_does_not_count_what_came_after_a_kill_alone(
    owner: Owner, ps: tc.Client, end: Callable[[Owner], Awaitable[None]]
) -> None:
    net = await ps.module(nn.Linear, 4, 2, name="net")
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    before = bits((await net.state_dict())["weight"])
    async with ps.context() as ctx:
        await ctx.backward((await net(X)).sum())
        await end(owner)
        with pytest.raises(tc.errors.ContextLostError, match="killed"):
            await ctx.backward((await net(X)).sum(), step=opt)
    assert bits((await net.state_dict())["weight"]) == before
    async with ps.context() as ctx:
        await ctx.backward((await net(X)).sum(), step=opt)
    assert bits((await net.state_dict())["weight"]) != before


async def test_a_pass_that_begins_while_the_owner_is_away_goes_on(owner: Owner) -> None:
    away = asyncio.Event()

    def note(state: tc.ConnectionState) -> None:
        if state.state == "disconnected":
            away.set()

    async with tc.connect(owner.address, on_state=note) as ps:
        net = await ps.module(nn.Linear, 4, 2, name="net")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        before = bits((await net.state_dict())["weight"])
        away.clear()
        await owner.server.stop()
        await away.wait()
        async with ps.context() as ctx:
            called = net(X)
            await owner.start()
            await ctx.backward((await called).sum(), step=opt)
        assert bits((await net.state_dict())["weight"]) != before
