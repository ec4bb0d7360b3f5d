"""Tests that values given to a backward with a step are those of the step."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.server import Server
from tests.integration import spanning
from tests.integration.breaking import for_each, no_fault, same_wherever_it_breaks
from tests.integration.support import AFFINE, in_memory
from tests.training import apart, training
from trainer_client.transport.faulty import Fault, FaultyConnector, Plan

X = torch.ones(2, 3)

POLICIES = pytest.mark.parametrize("policy", [None, tc.policies.Sync(2)], ids=["at once", "sync"])


async def step(trainer: spanning.Trainer, **more: Any) -> Any:
    """A pass that reports values with its backward, in a task of its own."""

    async def run() -> Any:
        async with trainer.client.context() as ctx:
            return await ctx.backward(await trainer.loss(X), step=trainer.opt, **more)

    return await apart(run())


@POLICIES
@pytest.mark.parametrize("places", [1, 2])
async def test_values_of_a_backward_are_reduced_with_those_of_its_round(
    policy: tc.policies.Policy | None, places: int
) -> None:
    async with spanning.trainers(2, policy, places) as (servers, group):
        found = await asyncio.gather(
            *(step(each, values={"loss": rank, "n": 1}, reduce={"n": "sum"}) for rank, each in enumerate(group))
        )
        if policy is not None:
            assert [each.reported for each in found] == [{"loss": 0.5, "n": 2}] * 2
        assert await group[0].opt.values() == {"loss": 0.5, "n": 2}
        steps = 2 if policy is None else 1
        assert await step_versions(group[0]) == {server.engine.name: steps for server in servers}


async def step_versions(trainer: spanning.Trainer) -> dict[str, int]:
    return {name: (await trainer.client.status(name)).optimizers[0].version for name in trainer.client.owners}


@POLICIES
@pytest.mark.parametrize("places", [1, 2])
async def test_refused_values_step_nothing_and_the_pass_goes_on(policy: tc.policies.Policy | None, places: int) -> None:
    policy = None if policy is None else tc.policies.Sync(1)
    async with spanning.trainers(1, policy, places) as (_, (trainer,)):
        await step(trainer, values={"loss": 1.0})
        async with trainer.client.context() as ctx:
            loss = await trainer.loss(X)
            for values in ({"loss": object()}, {"": 1}, {f"{number}": 1 for number in range(65)}):
                with pytest.raises((tc.errors.InvalidArgumentError, tc.errors.TooLargeError)):
                    await ctx.backward(loss, step=trainer.opt, values=values)
            # Only the owner knows that this does not fit what came before.
            with pytest.raises(tc.errors.InvalidArgumentError) as caught:
                await ctx.backward(loss, step=trainer.opt, values={"loss": torch.ones(2)})
            assert "The backward has succeeded" in caught.value.__notes__[0]
            assert set((await step_versions(trainer)).values()) == {1}
            await trainer.opt.step(ctx, values={"loss": 3.0})
        assert await trainer.opt.values() == {"loss": 2.0}


async def test_values_without_a_step_say_where_they_go(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 3, 2)
    async with ps.context() as ctx:
        loss = (await net(X)).sum()
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"`step=opt, values=\{…\}`"):
            await ctx.backward(loss, values={"loss": loss})
        await ctx.backward(loss)


async def test_the_first_of_several_optimizers_counts_the_values() -> None:
    async with training("ps0", "ps1") as (_, ps):
        nets = [await ps.module("torch.nn.Linear", 3, 3, owner=name) for name in ("ps1", "ps0")]
        local = nn.Linear(3, 3)
        opts = [
            await ps.optimizer(optim.SGD, [*net.parameters(), *more], lr=0.1)
            for net, more in zip(nets, ([], local.parameters()), strict=True)
        ]
        async with ps.context() as ctx:
            loss = local(await nets[1](await nets[0](X))).sum()
            stepped = await ctx.backward(loss, step=opts, values={"loss": loss})
        assert stepped == [{"ps1": 1}, {"ps0": 1}]
        assert await opts[0].values() == {"loss": loss.item()}
        assert await opts[1].values() == {}


async def test_an_optimizer_with_tables_counts_values_and_tables_alone_refuse_them(ps: tc.Client) -> None:
    net, table = await ps.module("torch.nn.Linear", 2, 1, name="net"), await ps.table("users", dim=2)
    both = await ps.optimizer(optim.SGD, [*net.parameters(), table], lr=0.1)
    alone = await ps.optimizer(None, [table])
    async with ps.context() as ctx:
        loss = (await net(await table(torch.tensor([1, 2])))).sum()
        with pytest.raises(tc.errors.InvalidArgumentError, match="tables only"):
            await ctx.backward(loss, step=alone, values={"loss": loss})
        await ctx.backward(loss, step=both, values={"loss": loss})
    assert await both.values() == {"loss": loss.item()}


async def test_values_are_those_at_the_time_of_the_call(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 3, 2)
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    values = {"n": 1}
    async with ps.context() as ctx:
        begun = ctx.backward((await net(X)).sum(), step=opt, values=values)
        values["n"] = 2
        await begun
    assert await opt.values() == {"n": 1}


async def job(policy: tc.policies.Policy | None, plan: Plan) -> list[Any]:
    """Two trainers, of which one may lose its stream, report values in backwards."""
    async with in_memory() as owner, AsyncExitStack() as stack:
        trainers = []
        for line in (FaultyConnector(owner.connector(), plan), owner.connector()):
            client = await stack.enter_async_context(tc.connect(line))
            net = await client.module(AFFINE, 3, 2, name="net", seed=0)
            opt = await client.optimizer(optim.SGD, net.parameters(), lr=0.5, policy=policy)
            trainers.append(spanning.Trainer(client, [net], opt))
        for _ in range(2):
            await asyncio.gather(*(step(each, values={"n": 1}, reduce="sum") for each in trainers))
        return sorted((await trainers[1].opt.values()).items())


@for_each({"at once": None, "sync": tc.policies.Sync(2)})
async def test_values_count_once_wherever_the_stream_breaks(policy: tc.policies.Policy | None, fault: Fault) -> None:
    assert await job(policy, no_fault) == [("n", 4)]
    await same_wherever_it_breaks(lambda plan: job(policy, plan), fault, kinds=["backward", "step"])


async def test_a_pass_that_is_run_again_reports_its_values_once(owner: Server, ps: tc.Client, ps2: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 3, 2, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    tries = []

    async def once(ctx: tc.Context) -> tc.Stepped:
        stepped = await ctx.backward((await net(X)).sum(), step=opt, values={"n": 1}, retain_graph=True)
        tries.append(stepped)
        if len(tries) == 1:
            raise tc.errors.ContextLostError("the answer was lost")
        return stepped

    await ps.run(once)
    assert len(tries) == 2 and tries[1].repeated
    assert await opt.values() == {"n": 1}


@pytest.mark.parametrize("places", [1, 2])
async def test_the_blocking_client_reports_values_with_its_backwards(places: int) -> None:
    async with spanning.trainers(1, None, places) as (servers, _):

        def train() -> tuple[Any, Any]:
            with tc.connect(*(each.address for each in servers)) as ps:
                nets = [ps.module("torch.nn.Linear", 3, 3, name=f"mine-{each}", owner=each) for each in ps.owners]
                local = nn.Linear(3, 3)
                parameters = [p for net in nets for p in net.parameters()]
                opt = ps.optimizer(optim.SGD, [*parameters, *local.parameters()], lr=0.1, name="mine")
                for number in range(2):
                    with ps.context() as ctx:
                        x = local(X)
                        for net in nets:
                            x = net(x)
                        with pytest.raises(tc.errors.InvalidArgumentError, match="give backward"):
                            ctx.backward(x.sum(), values={"loss": 1})
                        stepped = ctx.backward(x.sum(), step=opt, values={"n": 1, "x": number}, reduce={"n": "sum"})
                return stepped, opt.values()

        stepped, values = await asyncio.to_thread(train)
        assert stepped == {server.engine.name: 2 for server in servers}
        assert values == {"n": 2, "x": 0.5}
