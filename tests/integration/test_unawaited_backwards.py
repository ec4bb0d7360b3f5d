"""Tests of passes whose program does not await their backwards and steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import torch
from torch import nn
from torch.nn.functional import mse_loss

import trainer_client as tc
from tests.training import owners

X, Y = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(1, -1, 8).view(4, 2)


@pytest_asyncio.fixture
async def ps() -> AsyncIterator[tc.Client]:
    async with owners("ps0") as (server,), tc.connect(server.address) as client:
        yield client


async def trained(net: tc.RemoteModule) -> nn.Linear:
    """The layer after one step of SGD, trained here."""
    local = nn.Linear(3, 2)
    local.load_state_dict(await net.state_dict())
    opt = torch.optim.SGD(local.parameters(), lr=0.1)
    mse_loss(local(X), Y).backward()
    opt.step()
    return local


def in_one(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    ctx.backward(loss, step=opt)


def in_two(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    ctx.backward(loss)
    opt.step(ctx)


def clipped(ctx: tc.Context, loss: torch.Tensor, opt: Any) -> None:
    ctx.backward(loss)
    ctx.clip_grad_norm([], 1.0)
    opt.step(ctx)


@pytest.mark.parametrize("learn", [in_one, in_two, clipped])
async def test_the_block_waits_for_what_was_not_awaited(ps: tc.Client, learn: Any) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    local = await trained(net)
    async with ps.context() as ctx:
        learn(ctx, mse_loss(await net(X), Y), opt)
    found = await net.state_dict()
    for name, value in local.state_dict().items():
        torch.testing.assert_close(found[name], value)


async def test_it_waits_for_steps_of_tables_too(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    items = await ps.table("items", dim=3, optimizer=tc.tables.SGD(lr=0.1), init=tc.tables.Normal(1.0))
    opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1)
    ids = torch.arange(4)
    before = await items(ids)
    async with ps.context() as ctx:
        ctx.backward(mse_loss(await net(await items(ids)), Y))
        opt.step(ctx)
    assert not torch.equal(before, await items(ids))


async def test_the_block_raises_the_error_of_what_was_not_awaited(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, non_finite="refuse")
    before = await net.state_dict()
    with pytest.raises(tc.errors.NonFiniteGradientError):
        async with ps.context() as ctx:
            ctx.backward((await net(X)).sum() * float("nan"), step=opt)
    assert ctx.ended
    assert torch.equal((await net.state_dict())["weight"], before["weight"])


async def test_a_block_that_is_left_by_an_error_waits_for_nothing(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync(2))
    with pytest.raises(KeyError):
        async with ps.context() as ctx:
            begun = ctx.backward((await net(X)).sum(), step=opt)
            raise KeyError
    assert ctx.ended
    begun.cancel()


async def test_a_block_of_with_cannot_wait_and_says_so(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    with pytest.raises(tc.errors.InvalidArgumentError, match="await it, or use `async with`"), ps.context() as ctx:
        begun = ctx.backward((await net(X)).sum(), step=opt)
    assert ctx.ended
    begun.cancel()
