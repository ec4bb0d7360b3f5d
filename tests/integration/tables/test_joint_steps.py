"""Tests of stepping several tables and other parameters together: how many requests, and all of it or nothing."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.server import Server
from ps_wire.runtime.noop import noop
from tests.training import OPTIMIZERS, apart, owners

IDS = torch.tensor([5, -9, 5, 7])
"""Over two owners, both have rows of these."""


class Job:
    """Some tables whose rows begin with 0 and lose their gradient, and a layer, with one optimizer over all of them."""

    def __init__(self, ps: tc.Client, servers: list[Server]) -> None:
        self.ps = ps
        self.servers = servers
        self.tables: list[tc.Table] = []

    async def make(self, tables: int, optimizer: str = "torch.optim.SGD", **policies: tc.policies.Policy) -> tc.Client:
        for number in range(tables):
            policy = policies.get(f"table{number}")
            made = await self.ps.table(
                f"table{number}", 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), policy=policy
            )
            self.tables.append(made)
        self.net = await self.ps.module(nn.Linear, 2, 1, name="net", seed=0)
        self.weights = (await self.net.state_dict())["weight"]
        self.opt = await self.ps.optimizer(optimizer, [*self.tables, *self.net.parameters()], lr=1.0)
        return self.ps

    async def loss(self, last: float = 1.0) -> torch.Tensor:
        """The sum of all rows, those of the last table times a factor, and of the layer's output for ones."""
        found = await self.ps.look_up(dict.fromkeys(self.tables, IDS))
        factors = [1.0] * (len(self.tables) - 1) + [last]
        rows = sum(found[table].sum() * factor for table, factor in zip(self.tables, factors, strict=True))
        return rows + (await self.net(torch.ones(1, 2))).sum()

    async def add(self) -> tc.Stepped:
        async with self.ps.context() as ctx:
            await ctx.backward(await self.loss())
            return await self.opt.step(ctx)

    async def steps(self) -> list[float]:
        """How many times each table and the layer have stepped."""
        rows = await self.ps.look_up(dict.fromkeys(self.tables, IDS))
        for each in rows.values():
            assert torch.equal(each, each[1:2, :1] * torch.tensor([2.0, 1, 2, 1])[:, None].expand(4, 2))
        changed = self.weights - (await self.net.state_dict())["weight"]
        return [*(-each[1, 0].item() for each in rows.values()), round(changed[0, 0].item(), 3)]

    def asked(self) -> list[Counter[str]]:
        """The requests that each owner has answered."""
        return [
            Counter({name: count.durations.count for name, count in server.engine.counters.operations().items()})
            for server in self.servers
        ]


@pytest.fixture(params=[1, 2], ids=["one owner", "two owners"])
async def job(request: pytest.FixtureRequest) -> AsyncIterator[Job]:
    names = [f"ps{number}" for number in range(request.param)]
    async with owners(*names) as servers, tc.connect(*(each.address for each in servers)) as ps:
        yield Job(ps, servers)


async def test_each_owner_gets_one_request_for_all_tables(job: Job) -> None:
    await job.make(6)
    for number in range(2):
        async with job.ps.context() as ctx:
            await ctx.backward(await job.loss())
            before = job.asked()
            stepped = await job.opt.step(ctx)
            requests = [after - earlier for after, earlier in zip(job.asked(), before, strict=True)]
        # Of several owners, all check before one of them steps.
        assert requests == [{"step": len(job.servers)}] * len(job.servers)
        named = [f"{owner}/{table.name}" for table in job.tables for owner in table.owners]
        assert stepped == dict.fromkeys([*named, "ps0"], number + 1)
    assert await job.steps() == [2] * 7


async def test_on_one_owner_the_steps_go_with_the_backward(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    # The work counts as short, however busy the machine is, once it has been measured.
    monkeypatch.setattr("ps_wire.runtime.latency.INLINE_SECONDS", 10.0)
    await job.make(3)
    opt = await job.ps.optimizer(None, job.tables)
    for number in range(1, 13):
        async with job.ps.context() as ctx:
            found = await job.ps.look_up(dict.fromkeys(job.tables, IDS))
            before = job.asked()
            stepped = await ctx.backward(torch.stack(list(found.values())).sum(), step=opt)
        assert stepped == {f"{owner}/{table.name}": number for table in job.tables for owner in table.owners}
    made = [after - earlier for after, earlier in zip(job.asked(), before, strict=True)]
    if len(job.servers) == 1:
        # They are counted as operations, and the request was one.
        assert made == [{"backward": 1, "step": 1, "end_context": 1}]
    else:
        # The backward checks the gradients, too. The end may not have arrived yet.
        assert [(each["backward"], each["step"]) for each in made] == [(1, 1)] * 2
    assert await job.steps() == [12, 12, 12, 0]


@pytest.mark.parametrize("behind", [True, False], ids=["behind the backward", "by itself"])
async def test_a_gradient_that_is_refused_changes_nothing_anywhere(job: Job, behind: bool) -> None:
    await job.make(3)
    async with job.ps.context() as ctx:
        loss = await job.loss(last=math.nan)
        with pytest.raises(tc.errors.NonFiniteGradientError):
            if behind:
                await ctx.backward(loss, step=job.opt)
            else:
                await ctx.backward(loss)
                await job.opt.step(ctx)
        assert await apart(job.steps()) == [0] * 4
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await job.opt.step(ctx)
    assert await job.steps() == [0] * 4
    assert set((await job.add()).values()) == {1}


@pytest.mark.parametrize("behind", [True, False], ids=["behind the backward", "by itself"])
async def test_an_optimizer_that_raises_halfway_keeps_the_others_of_its_owner_from_stepping(
    job: Job, behind: bool
) -> None:
    await job.make(3, f"{OPTIMIZERS}.HalfWay")
    async with job.ps.context() as ctx:
        # It raises at the bias, whose gradient is zero, when it has written the weights.
        loss = await job.loss() - (await job.net(torch.zeros(1, 2))).sum()
        with pytest.raises(tc.errors.RemoteError, match="zeros"):
            if behind:
                await ctx.backward(loss, step=job.opt)
            else:
                await ctx.backward(loss)
                await job.opt.step(ctx)
    assert torch.equal((await job.net.state_dict())["weight"], job.weights)
    for table in job.tables:
        here = IDS[table.routing.owner_of(IDS) == 0]
        assert len(here) and not (await table(here)).any()
    if len(job.servers) == 1:
        await job.add()
        assert await job.steps() == [1] * 4


async def test_the_order_in_which_a_request_names_optimizers_does_not_matter(job: Job) -> None:
    await job.make(2, f"{OPTIMIZERS}.HalfWay")
    assert job.opt.parameters is not None
    raising, (part, other) = job.opt.parameters.remotes["ps0"], (each.optimizer.remotes["ps0"] for each in job.tables)
    async with job.ps.context() as ctx:
        await ctx.backward(await job.loss() - (await job.net(torch.zeros(1, 2))).sum())
        with pytest.raises(tc.errors.RemoteError, match="zeros"):
            await part.step(ctx, noop, more=[raising, other])
    assert await job.steps() == [0] * 3


async def test_tables_with_policies_step_by_themselves_once_all_gradients_are_accepted(job: Job) -> None:
    ps = await job.make(3, table1=tc.policies.Sync(1))
    for _ in range(2):
        await job.add()
    async with ps.context() as ctx:
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await ctx.backward(await job.loss(last=math.inf), step=job.opt)
    assert await job.steps() == [2] * 4
    async with ps.context() as ctx:
        await ctx.backward(await job.loss(), step=job.opt)
    assert await job.steps() == [3] * 4


async def test_a_policy_that_another_trainer_sets_meanwhile(job: Job) -> None:
    await job.make(3)
    await job.add()
    async with tc.connect(*(each.address for each in job.servers)) as other:
        table = await other.table("table1")
        await table.optimizer.set_policy(tc.policies.Quorum(1, of=1))
        assert set((await job.add()).values()) == {2}
        await job.add()
        assert await job.steps() == [3] * 4
        if len(job.servers) == 1:
            await table.optimizer.set_policy(tc.policies.Async())
            await job.add()
            assert await job.steps() == [4] * 4


async def test_trainers_that_list_tables_in_another_order_do_not_wait_for_each_other(job: Job) -> None:
    await job.make(4)
    async with tc.connect(*(each.address for each in job.servers)) as other:
        there = Job(other, job.servers)
        there.tables = [await other.table(each.name) for each in reversed(job.tables)]
        there.net = await other.attach("net", "ps0")
        there.opt = await other.optimizer(torch.optim.SGD, [*there.tables, *there.net.parameters()], lr=1.0)
        async with asyncio.timeout(60):
            await asyncio.gather(*(apart(each.add()) for each in (job, there) for _ in range(4)))
    assert await job.steps() == [8] * 5


async def test_local_parameters_step_with_the_tables_or_not_at_all(job: Job) -> None:
    await job.make(2)
    weight = torch.zeros(1, requires_grad=True)
    opt = await job.ps.optimizer(torch.optim.SGD, [*job.tables, weight], lr=1.0, non_finite="refuse")
    for factor, expected in ((math.nan, 0.0), (1.0, 1.0)):
        async with job.ps.context() as ctx:
            loss = await job.loss() + weight.sum() * factor
            try:
                await ctx.backward(loss, step=opt)
            except tc.errors.NonFiniteGradientError:
                assert expected == 0
        assert await job.steps() == [expected, expected, 0.0] and weight.item() == -expected


async def test_a_request_that_names_an_optimizer_twice_or_asks_for_more_is_refused(job: Job) -> None:
    await job.make(2)
    part, other = (table.optimizer.remotes["ps0"] for table in job.tables)
    async with job.ps.context() as ctx:
        await ctx.backward(await job.loss())
        with pytest.raises(tc.errors.InvalidArgumentError, match="twice"):
            await part.step(ctx, noop, more=[other, part])
        with pytest.raises(tc.errors.InvalidArgumentError, match="one optimizer only"):
            await part.step(ctx, noop, finish=True, more=[other])
    assert await job.steps() == [0] * 3
