"""Tests of the errors of `ctx.backward(loss, step=opt)`: nothing steps after a backward that failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import optim

import trainer_client as tc
from tests.autograd_models import barrier, event, rendezvous
from tests.custom_functions import FailingBackward
from tests.integration.linear_layers import X, linear, steps
from tests.training import MODELS, OPTIMIZERS, hosted_value, same_state, training
from tests.waiting import until


@pytest.mark.parametrize("names", [("ps0", "ps0"), ("ps0", "ps1")], ids=["one owner", "two owners"])
@pytest.mark.parametrize("graded", [False, True], ids=["inputs want none", "inputs want gradients"])
async def test_nothing_steps_after_a_backward_that_failed(names: tuple[str, str], graded: bool) -> None:
    async with training("ps0", "ps1") as (servers, ps):
        (good, here), (bad, _) = await linear(ps, names[0]), await linear(ps, names[1], f"{MODELS}.Explodes")
        opt = await ps.optimizer(optim.SGD, [*good.parameters(), *bad.parameters()], lr=0.1)
        x = X.clone().requires_grad_(graded)
        async with ps.context() as ctx:
            loss = (await good(x)).sum() + (await bad(x, explode=True)).sum()
            with pytest.raises(tc.errors.RemoteError, match="broken"):
                await ctx.backward(loss, step=opt)
            assert not ctx.ended
            await ctx.get_gradients()
        assert [steps(server) for server in servers] == [0, 0]
        await same_state(good, here)


async def test_nothing_steps_after_a_local_part_that_failed() -> None:
    async with training() as ((server,), ps):
        net, here = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        for x in (torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)):
            async with ps.context() as ctx:
                y = await net(FailingBackward.apply(x)) if x.requires_grad else FailingBackward.apply(await net(x))
                with pytest.raises(ArithmeticError):
                    await ctx.backward(y.sum(), step=opt)
                assert not ctx.ended
        assert steps(server) == 0
        await same_state(net, here)


@pytest.mark.parametrize("leaf", [False, True], ids=["no local part", "a leaf before it"])
async def test_a_step_that_is_refused_leaves_the_pass_as_after_a_backward(leaf: bool) -> None:
    async with training() as (_, ps):
        net, here = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, non_finite="refuse")
        x = X.clone().requires_grad_(leaf)
        async with ps.context() as ctx:
            with pytest.raises(tc.errors.NonFiniteGradientError) as caught:
                await ctx.backward((await net(x)).sum() * torch.inf, step=opt)
            assert any("The step raised this" in note for note in caught.value.__notes__)
            assert not ctx.ended
            assert len(await ctx.get_gradients()) == 2 + leaf
            with pytest.raises(tc.errors.NonFiniteGradientError):
                await opt.step(ctx)
        await same_state(net, here)


async def test_what_waits_for_a_backward_does_not_fail_with_its_step() -> None:
    async with training() as (_, ps):
        net, _ = await linear(ps)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, non_finite="refuse")
        for _ in range(3):  # in a thread at first, and on the event loop later
            async with ps.context() as ctx:
                backward = ctx.backward((await net(X)).sum() * torch.inf, step=opt)
                assert len(await ctx.get_gradients()) == 2
                with pytest.raises(tc.errors.NonFiniteGradientError):
                    await backward


async def test_a_step_that_is_refused_on_one_owner_is_made_on_none() -> None:
    async with training("ps0", "ps1") as (_, ps):
        (one, here), (two, also_here) = await linear(ps), await linear(ps, "ps1")
        opt = await ps.optimizer(optim.SGD, [*one.parameters(), *two.parameters()], lr=0.1, non_finite="refuse")
        async with ps.context() as ctx:
            with pytest.raises(tc.errors.NonFiniteGradientError):
                await ctx.backward((await one(X)).sum() + (await two(X)).sum() * torch.inf, step=opt)
        await same_state(one, here)
        await same_state(two, also_here)


async def test_optimizers_before_the_one_that_raised_have_stepped_here_too() -> None:
    async with training() as (_, ps):
        (good, here), (bad, _) = await linear(ps), await linear(ps)
        mine = torch.ones(3, requires_grad=True)
        first = await ps.optimizer(optim.SGD, [*good.parameters(), mine], lr=0.1)
        second = await ps.optimizer(optim.SGD, bad.parameters(), lr=0.1, non_finite="refuse")
        async with ps.context() as ctx:
            loss = ((await good(X)) * mine).sum() + (await bad(X)).sum() * torch.inf
            with pytest.raises(tc.errors.NonFiniteGradientError):
                await ctx.backward(loss, step=[first, second])
        loss = (here(X) * torch.ones(3)).sum()
        loss.backward()
        optim.SGD(here.parameters(), lr=0.1).step()
        await same_state(good, here)
        assert not torch.equal(mine.detach(), torch.ones(3))


async def test_an_error_of_hosted_code_in_the_step_is_raised() -> None:
    async with training() as (_, ps):
        net, here = await linear(ps)
        opt = await ps.optimizer(f"{OPTIMIZERS}.HalfWay", net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            with pytest.raises(tc.errors.RemoteError, match="zeros only"):
                await ctx.backward((await net(X)).sum() * 0, step=opt)
        await same_state(net, here)


@pytest.mark.parametrize("step", [[], 3, [None]], ids=str)
async def test_what_is_no_optimizer_is_refused_before_anything_runs(step: Any) -> None:
    async with training() as ((server,), ps):
        net, _ = await linear(ps)
        async with ps.context() as ctx:
            loss = (await net(X)).sum()
            with pytest.raises((tc.errors.InvalidArgumentError, TypeError), match=r"optimizer|not iterable"):
                await ctx.backward(loss, step=step)
            assert "backward" not in server.engine.counters.operations()


async def test_the_optimizer_of_another_client_is_refused() -> None:
    async with training() as ((server,), ps), tc.connect(server.address) as other:
        net, _ = await linear(ps)
        opt = await other.optimizer(optim.SGD, (await other.attach(str(net))).parameters(), lr=0.1)
        async with ps.context() as ctx:
            with pytest.raises(tc.errors.InvalidArgumentError, match="different clients"):
                await ctx.backward((await net(X)).sum(), step=opt)


# Time-outs and cancelling


async def test_nothing_steps_when_the_backward_was_not_there_in_time(request: pytest.FixtureRequest) -> None:
    name = request.node.name
    async with training() as ((server,), ps):
        net = await ps.module(f"{MODELS}.MeetsOnTheWayBack", 3, name, 2)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            loss = (await net(X)).sum()
            ps.session().settings.timeout = 0.5
            with pytest.raises(tc.errors.DeadlineExceededError):
                await ctx.backward(loss, step=opt)
            assert not ctx.ended
            # The owner hears that the trainer has given up. The backward goes on, and is the last that it does.
            await until(lambda: not server.engine.counters.running)
            await asyncio.to_thread(rendezvous, name, 2)
        await until(lambda: not server.engine.compute.lost)
        assert hosted_value(server, opt.remotes["ps0"].handle).version == 0


async def test_nothing_steps_when_the_backward_is_cancelled(request: pytest.FixtureRequest) -> None:
    name = request.node.name
    async with training() as ((server,), ps):
        net = await ps.module(f"{MODELS}.MeetsOnTheWayBack", 3, name, 2)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            loss = (await net(X)).sum()
            pending = ctx.backward(loss, step=opt)
            await until(lambda: barrier(name, 2).n_waiting == 1)
            pending.cancel()
            with pytest.raises(tc.errors.CancelledCallError):
                await pending
            await until(lambda: not server.engine.counters.running)
            await asyncio.to_thread(rendezvous, name, 2)
        await until(lambda: not server.engine.compute.lost)
        assert hosted_value(server, opt.remotes["ps0"].handle).version == 0


async def test_a_step_that_was_not_there_in_time_is_made_as_a_step_by_itself_is(request: pytest.FixtureRequest) -> None:
    name = request.node.name
    async with training() as ((server,), ps):
        net, here = await linear(ps)
        opt = await ps.optimizer(f"{OPTIMIZERS}.Pausing", net.parameters(), lr=0.1, what=name)
        async with ps.context() as ctx:
            loss = (await net(X)).sum()
            ps.session().settings.timeout = 0.5
            with pytest.raises(tc.errors.DeadlineExceededError):
                await ctx.backward(loss, step=opt)
            ps.session().settings.timeout = 60.0
            event(f"{name} may go on").set()
        await until(lambda: not server.engine.compute.lost)
        here(X).sum().backward()
        optim.SGD(here.parameters(), lr=0.1).step()
        await same_state(net, here)
