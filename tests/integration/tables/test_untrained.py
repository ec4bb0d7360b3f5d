"""Tests that a table which a pass has looked up in, and which none of its steps trains, is told of once."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import pytest_asyncio
import torch
from torch import nn, optim

import trainer_client as tc

IDS = torch.tensor([3, 4, 3])


class Model:
    """A layer and two tables, each on two owners."""

    def __init__(self, ps: tc.Client, net: tc.RemoteModule, items: tc.Table, users: tc.Table) -> None:
        self.ps, self.net, self.items, self.users = ps, net, items, users

    async def loss(self) -> torch.Tensor:
        items, users = await self.items(IDS), await self.users.bag(IDS, torch.tensor([0, 1, 2]))
        return (await self.net(items)).sum() + users.sum()


@pytest_asyncio.fixture
async def model(pair: tc.Client) -> AsyncIterator[Model]:
    net = await pair.module(nn.Linear, 2, 1)
    yield Model(pair, net, await pair.table("items", 2), await pair.table("users", 2))


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """The tables that were told of."""

    def found() -> list[str]:
        records = [each for each in caplog.records if each.name == "trainer_client"]
        assert all(each.levelno == logging.WARNING and "none of its steps" in each.getMessage() for each in records)
        return [each.getMessage().split("'")[1] for each in records]

    yield found


Told = Callable[[], list[str]]


async def test_tables_that_no_step_trains_are_told_of_once(model: Model, told: Told) -> None:
    opt = await model.ps.optimizer(optim.SGD, model.net.parameters(), lr=0.1)
    for _ in range(2):
        async with model.ps.context() as ctx:
            await ctx.backward(await model.loss(), step=opt)
    assert sorted(told()) == ["items", "users"]
    with_items = await model.ps.optimizer(optim.SGD, [*model.net.parameters(), model.items], lr=0.1, name="other")
    other = await model.ps.table("users", 2)
    async with model.ps.context() as ctx:
        await other(IDS)
        await ctx.backward(await model.loss())
        await with_items.step(ctx)
    assert sorted(told()) == ["items", "users"], "another handle to the same table"


async def test_each_table_is_told_of_by_itself(model: Model, told: Told) -> None:
    opt = await model.ps.optimizer(optim.SGD, [*model.net.parameters(), model.items], lr=0.1)
    async with model.ps.context() as ctx:
        await ctx.backward(await model.loss(), step=opt)
    assert told() == ["users"]


async def together(model: Model) -> None:
    opt = await model.ps.optimizer(optim.SGD, [*model.net.parameters(), model.items, model.users], lr=0.1)
    async with model.ps.context() as ctx:
        await ctx.backward(await model.loss(), step=opt)
    async with model.ps.context() as ctx:
        await ctx.backward(await model.loss())
        await opt.step(ctx)


async def several_steps(model: Model) -> None:
    opt = await model.ps.optimizer(optim.SGD, model.net.parameters(), lr=0.1)
    async with model.ps.context() as ctx:
        await ctx.backward(await model.loss(), step=[opt, model.items.optimizer, model.users.optimizer])
    async with model.ps.context() as ctx:
        await ctx.backward(await model.loss())
        for each in (model.users.optimizer, opt, model.items.optimizer):
            await each.step(ctx)


async def rounds(model: Model) -> None:
    opt = await model.ps.optimizer(optim.SGD, model.net.parameters(), lr=0.1)
    for each in (model.users, model.items):
        await each.optimizer.set_policy(tc.policies.Sync(trainers=1))
    async with model.ps.context() as ctx:
        await ctx.backward(await model.loss())
        for one in (opt, model.users.optimizer, model.items.optimizer):
            await one.step(ctx)


async def without_grad(model: Model) -> None:
    opt = await model.ps.optimizer(optim.SGD, model.net.parameters(), lr=0.1)
    async with model.ps.context() as ctx:
        with torch.no_grad():
            items = await model.items(IDS)
        await ctx.backward((await model.net(items)).sum(), step=opt)
        await model.users(IDS)  # after the end of the pass


async def frozen(model: Model) -> None:
    opt = await model.ps.optimizer(optim.SGD, model.net.parameters(), lr=0.1)
    for table in (model.items, model.users):
        for each in table.parameters():
            await each.requires_grad_(False)
    async with model.ps.context() as ctx:
        await ctx.backward(await model.loss(), step=opt)


async def without_a_step(model: Model) -> None:
    async with model.ps.context() as ctx:
        await ctx.backward(await model.loss())
    async with model.ps.context():
        await model.loss()


async def left_by_an_exception(model: Model) -> None:
    opt = await model.ps.optimizer(optim.SGD, model.net.parameters(), lr=0.1)
    with pytest.raises(KeyError):
        async with model.ps.context() as ctx:
            await ctx.backward(await model.loss(), retain_graph=True, step=opt)
            raise KeyError


@pytest.mark.parametrize(
    "train", [together, several_steps, rounds, without_grad, frozen, without_a_step, left_by_an_exception]
)
async def test_others_are_not_told_of(model: Model, told: Told, train: Callable[[Model], Awaitable[None]]) -> None:
    await train(model)
    assert told() == []
