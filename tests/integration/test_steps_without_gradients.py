"""Tests of steps that change nothing because the program has made a mistake."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch
from torch import nn

import trainer_client as tc
from tests.training import owners

X = torch.linspace(-1, 1, 12).view(4, 3)


@pytest_asyncio.fixture
async def ps() -> AsyncIterator[tc.Client]:
    async with owners("ps0") as (server,), tc.connect(server.address) as client:
        yield client


async def test_an_optimizer_takes_no_parameters_of_replicas(ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    replica = await net.replica()
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"parameters of a replica.*replica\.push\(opt\)"):
        await ps.optimizer(torch.optim.SGD, replica.parameters(), lr=0.1)
    # Torch's own optimizers take them, for local steps.
    torch.optim.SGD(replica.parameters(), lr=0.1)


@pytest.mark.parametrize("together", [True, False])
async def test_a_step_with_a_pass_that_called_nothing_there_is_told_of_once(
    ps: tc.Client, together: bool, caplog: pytest.LogCaptureFixture
) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    head = nn.Linear(2, 1)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name="opt")
    for _ in range(2):
        outside = await net(X)
        async with ps.context() as ctx:
            loss = head(outside).sum()
            if together:
                stepped = await ctx.backward(loss, step=opt)
            else:
                await ctx.backward(loss)
                stepped = await opt.step(ctx)
            assert stepped.counted == 0
    (told,) = (each for each in caplog.records if each.name == "trainer_client")
    assert told.levelno == logging.WARNING
    assert "called nothing on owner 'ps0'" in told.getMessage()


async def test_a_step_with_gradients_is_not_told_of(ps: tc.Client, caplog: pytest.LogCaptureFixture) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    async with ps.context() as ctx:
        await ctx.backward((await net(X)).sum())
        assert (await opt.step(ctx)).counted == 1
    assert not [each for each in caplog.records if each.name == "trainer_client"]


async def test_a_push_without_gradients_is_told_of_once(ps: tc.Client, caplog: pytest.LogCaptureFixture) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    replica = await net.replica()
    replica(X).sum().backward()
    await replica.push(opt)
    assert not caplog.records
    for _ in range(2):
        replica(X).sum()
        await replica.push(opt)
    (told,) = (each for each in caplog.records if each.name == "trainer_client")
    assert told.levelno == logging.WARNING
    assert "a push of a replica (weight, bias) has no gradient" in told.getMessage()
