"""Tests that `ctx.backward(loss, step=opt)` has the same result as separate calls."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests.integration.linear_layers import X, linear
from tests.training import owners, same_state, training


@pytest.mark.parametrize(
    ("names", "where"), [(("ps0", "ps1"), "before"), (("ps0", "ps1"), "after"), (("ps0", "ps0"), "both")]
)
async def test_parameters_of_this_process_step_too(names: tuple[str, str], where: str) -> None:
    async with training("ps0", "ps1") as (_, ps):
        pairs = [await linear(ps, name) for name in names]
        before, after = nn.Linear(3, 3), nn.Linear(3, 3)
        before_there, after_there = nn.Linear(3, 3), nn.Linear(3, 3)
        before_there.load_state_dict(before.state_dict())
        after_there.load_state_dict(after.state_dict())
        mine = [*(before.parameters() if where != "after" else ()), *(after.parameters() if where != "before" else ())]
        theirs = [
            *(before_there.parameters() if where != "after" else ()),
            *(after_there.parameters() if where != "before" else ()),
        ]
        remote = [parameter for each, _ in pairs for parameter in each.parameters()]
        opt = await ps.optimizer(optim.SGD, [*remote, *theirs], lr=0.1, momentum=0.9)
        local = optim.SGD([*(p for _, each in pairs for p in each.parameters()), *mine], lr=0.1, momentum=0.9)
        for number in range(4):
            x = X + number
            async with ps.context() as ctx:
                y = before_there(x) if where != "after" else x
                for module, _ in pairs:
                    y = await module(torch.tanh(y))
                y = after_there(y) if where != "before" else y
                versions = await ctx.backward(y.square().sum(), step=opt)
            assert versions == dict.fromkeys(names, number + 1)
            local.zero_grad()
            y = before(x) if where != "after" else x
            for _, module in pairs:
                y = module(torch.tanh(y))
            (after(y) if where != "before" else y).square().sum().backward()
            local.step()
        for module, twin_of_it in pairs:
            await same_state(module, twin_of_it)
        for mine_, theirs_ in zip(mine, theirs, strict=True):
            torch.testing.assert_close(mine_, theirs_)


@pytest.mark.parametrize("names", [("ps0", "ps0"), ("ps0", "ps1")], ids=["one owner", "two owners"])
async def test_several_optimizers_step_in_order(names: tuple[str, str]) -> None:
    async with training("ps0", "ps1") as (_, ps):
        (one, here), (two, also_here) = [await linear(ps, name) for name in names]
        remote = [
            await ps.optimizer(optim.Adam, one.parameters(), lr=0.1),
            await ps.optimizer(optim.SGD, two.parameters(), lr=0.1),
        ]
        local = [optim.Adam(here.parameters(), lr=0.1), optim.SGD(also_here.parameters(), lr=0.1)]
        for number in range(3):
            async with ps.context() as ctx:
                loss = (await two(torch.tanh(await one(X)))).square().sum()
                versions = await ctx.backward(loss, step=remote)
            assert versions == [{name: number + 1} for name in names]
            for each in local:
                each.zero_grad()
            also_here(torch.tanh(here(X))).square().sum().backward()
            for each in local:
                each.step()
        await same_state(one, here)
        await same_state(two, also_here)


async def test_the_pass_has_ended_afterwards() -> None:
    async with training("ps0", "ps1") as (servers, ps):
        (net, _), (other, _) = await linear(ps), await linear(ps, "ps1")
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            loss = (await net(X)).square().sum()
            await other(X)
            await ctx.backward(loss, step=opt)
            assert ctx.ended
            for work in (ctx.get_gradients, lambda: ctx.backward(loss), lambda: opt.step(ctx)):
                with pytest.raises(tc.errors.ContextEndedError, match="step"):
                    await work()
            # Later calls in the block belong to no pass.
            assert not (await net(X)).requires_grad
            assert not servers[0].engine.contexts.all()
        # The other owner is told without being waited for.
        await other(X)
        assert not servers[1].engine.contexts.all()
        async with ps.context() as ctx:
            await ctx.backward((await net(X)).sum(), step=opt)


async def test_tasks_that_go_on_after_the_block_are_still_refused() -> None:
    async with training() as (_, ps):
        net, _ = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        left = asyncio.Event()

        async def late() -> torch.Tensor:
            await left.wait()
            return await net(X)

        async with ps.context() as ctx:
            task = asyncio.create_task(late())
            await ctx.backward((await net(X)).sum(), step=opt)
        left.set()
        with pytest.raises(tc.errors.ContextEndedError):
            await task


@pytest.mark.filterwarnings("ignore:a second step of the same optimizer")
async def test_a_graph_that_is_retained_keeps_the_pass_open() -> None:
    async with training() as ((server,), ps):
        net, here = await linear(ps)
        opt, local = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1), optim.SGD(here.parameters(), lr=0.1)
        async with ps.context() as ctx:
            loss = (await net(X)).square().sum()
            assert await ctx.backward(loss, retain_graph=True, step=opt) == {"ps0": 1}
            assert len(server.engine.contexts.all()) == 1
            # As in torch, gradients add up until something zeroes them.
            assert await ctx.backward(loss, step=opt) == {"ps0": 2}
            assert not server.engine.contexts.all()
        loss = here(X).square().sum()
        gradient = torch.autograd.grad(loss, list(here.parameters()))
        for factor in (1, 2):
            for parameter, each in zip(here.parameters(), gradient, strict=True):
                parameter.grad = factor * each
            local.step()
        await same_state(net, here)


async def test_the_last_of_two_backwards_steps_with_the_gradients_of_both() -> None:
    async with training() as (_, ps):
        net, here = await linear(ps)
        opt, local = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1), optim.SGD(here.parameters(), lr=0.1)
        async with ps.context() as ctx:
            first, second = (await net(X)).sum(), (await net(2 * X)).square().sum()
            begun = ctx.backward(first)
            await ctx.backward(second, step=opt)
            await begun
        (here(X).sum() + here(2 * X).square().sum()).backward()
        local.step()
        await same_state(net, here)


async def test_a_pass_without_gradients_steps_nothing() -> None:
    async with training() as (_, ps):
        net, here = await linear(ps)
        other, _ = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        leaf = torch.ones(3, requires_grad=True)
        async with ps.context() as ctx:
            assert await ctx.backward(leaf.sum(), step=opt) == {"ps0": 0}
        async with ps.context() as ctx:
            assert await ctx.backward((await other(X)).sum(), step=opt) == {"ps0": 0}
        await same_state(net, here)


async def test_modules_that_a_pass_does_not_use_keep_their_numbers() -> None:
    async with training() as (_, ps):
        (net, here), (other, other_here) = await linear(ps), await linear(ps)
        opt = await ps.optimizer(optim.SGD, [*net.parameters(), *other.parameters()], lr=0.1, weight_decay=0.5)
        local = optim.SGD([*here.parameters(), *other_here.parameters()], lr=0.1, weight_decay=0.5)
        async with ps.context() as ctx:
            await ctx.backward((await net(X)).sum(), step=opt)
        here(X).sum().backward()
        local.step()
        await same_state(net, here)
        await same_state(other, other_here)


def test_programs_without_asyncio_step_in_the_same_way() -> None:
    async def serve(ready: asyncio.Future[str], done: asyncio.Event) -> None:
        async with owners("ps0") as (server,):
            ready.set_result(server.address)
            await done.wait()

    async def main() -> None:
        ready, done = asyncio.get_running_loop().create_future(), asyncio.Event()
        serving = asyncio.create_task(serve(ready, done))
        try:
            await asyncio.to_thread(train, await ready)
        finally:
            done.set()
            await serving

    def train(address: str) -> None:
        with tc.connect(address) as ps:
            net = ps.module("torch.nn.Linear", 3, 3)
            here = nn.Linear(3, 3)
            here.load_state_dict(net.state_dict())
            opt = ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
            with ps.context() as ctx:
                assert ctx.backward(net(X).sum(), step=[opt]) == [{"ps0": 1}]
                with pytest.raises(tc.errors.ContextEndedError):
                    ctx.get_gradients()
            here(X).sum().backward()
            optim.SGD(here.parameters(), lr=0.1).step()
            assert torch.equal(net.state_dict()["weight"], here.weight)

    asyncio.run(main())
