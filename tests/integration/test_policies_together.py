"""Tests of policies with many trainers, several threads, several optimizers of the same parameters, and schedulers."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.training.optimizers import HostedOptimizer
from tests.conftest import SERVE
from tests.forking.process import Forking
from tests.integration.test_policies import Trainer, batches, hosted, learn, local, trainers
from tests.training import owners, same_state
from tests.waiting import until

MANY = 20


@pytest.mark.parametrize(
    "policy",
    [tc.policies.Sync(MANY, "sum"), tc.policies.Quorum(MANY)],
    ids=str,
)
async def test_twenty_trainers_come_and_step_at_once(policy: tc.policies.Policy) -> None:
    async with owners("ps0", threads=4) as (server,), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(tc.connect(server.address)) for _ in range(MANY)]

        async def begin(ps: tc.Client) -> Trainer:
            net = await ps.module("torch.nn.Linear", 3, 2, name="net", seed=1)
            opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9, policy=policy)
            return Trainer(ps, net, opt)

        group = await asyncio.gather(*map(begin, clients))
        net, opt = await local(group[0])
        factor = MANY if policy.reduce == "sum" else 1  # type: ignore[union-attr]
        for turn in range(2):
            xs = batches(MANY * (turn + 1))[-MANY:]
            found = await asyncio.gather(*(each.step(x) for each, x in zip(group, xs, strict=True)))
            learn(net, opt, torch.cat(xs), factor)
            if policy != tc.policies.Quorum(MANY):
                assert [(each["ps0"], each.counted) for each in found] == [(turn + 1, MANY)] * MANY
            else:
                # Its answers come before the step.
                await until(lambda turn=turn: hosted(server).version == turn + 1)
            for name, value in (await group[0].net.state_dict()).items():
                torch.testing.assert_close(value, net.state_dict()[name])


def test_blocking_trainers_in_threads_take_part_in_rounds(forking: Forking) -> None:
    """Three clients, each with two threads: a thread evaluates while the other one waits in a round."""
    with forking.start(*SERVE, "--threads", "4") as process:
        address = process.stdout.readline().split()[-1]
        net, steps = nn.Linear(3, 2), 5

        def train(number: int) -> list[tuple[int, int]]:
            with tc.connect(address) as ps, ThreadPoolExecutor(1) as beside:
                there = ps.module("torch.nn.Linear", 3, 2, name="net", seed=1)
                opt = ps.optimizer(optim.SGD, there.parameters(), lr=0.1, momentum=0.9, policy=tc.policies.Sync(3))
                if number == 0:
                    net.load_state_dict(there.state_dict())
                found = []
                for step in range(steps):
                    looked = beside.submit(there, torch.ones(1, 3))
                    with ps.context() as ctx:
                        ctx.backward(there(data(number, step)).square().mean())
                        stepped = opt.step(ctx)
                    found.append((stepped["ps0"], stepped.counted))
                    assert looked.result().shape == (1, 2)
                last = there.state_dict()
                states.append(last)
            return found

        states: list[dict[str, torch.Tensor]] = []
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(train, range(3))) == [[(step + 1, 3) for step in range(steps)]] * 3
        sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(steps):
            learn(net, sgd, torch.cat([data(number, step) for number in range(3)]))
        for name, value in net.state_dict().items():
            torch.testing.assert_close(states[-1][name], value)
        process.terminate()
        assert process.wait() == 0


def data(number: int, step: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + number))


@pytest.mark.parametrize("joined", [False, True], ids=["step by itself", "step with the backward"])
async def test_a_scheduler_steps_between_rounds(joined: bool) -> None:
    async with trainers(2, tc.policies.Sync(2)) as (_, group):
        schedules = [await each.client.scheduler(lr_scheduler.StepLR, each.opt, 2, gamma=0.5) for each in group]
        net, opt = await local(group[0])
        schedule = lr_scheduler.StepLR(opt, 2, gamma=0.5)
        for turn in range(5):
            xs = batches(2 * (turn + 1))[-2:]
            await asyncio.gather(*(each.step(x, joined) for each, x in zip(group, xs, strict=True)))
            # One of them for all; the other one sees it.
            await schedules[turn % 2].step()
            learn(net, opt, torch.cat(xs))
            schedule.step()
            await same_state(group[0].net, net)
            assert await schedules[1 - turn % 2].get_last_lr() == schedule.get_last_lr()


async def test_two_optimizers_of_the_same_parameters_follow_their_own_policies() -> None:
    """Gradients are all ones, so that the order of steps does not matter."""
    async with trainers(3, tc.policies.Sync(3)) as (server, group):
        others = [
            await each.client.optimizer(
                optim.SGD, each.net.parameters(), lr=1.0, name="other", policy=tc.policies.Quorum(2, reduce="sum")
            )
            for each in group
        ]
        before = await group[0].net.state_dict()

        async def train(trainer: Trainer, other: tc.DistributedOptimizer) -> list[tuple[int, int]]:
            found = []
            for _ in range(4):
                async with trainer.client.context() as ctx:
                    await ctx.backward((await trainer.net(torch.ones(1, 3))).sum())
                    assert (await other.step(ctx)).counted in (0, 2)
                    stepped = await trainer.opt.step(ctx)
                    found.append((stepped["ps0"], stepped.counted))
            return found

        found = await asyncio.gather(*(train(each, other) for each, other in zip(group, others, strict=True)))
        assert found == [[(turn + 1, 3) for turn in range(4)]] * 3
        optimizers = {
            each.name: each.value
            for each in server.engine.registry.objects()
            if isinstance(each.value, HostedOptimizer)
        }
        await until(lambda: optimizers["other"].version == 6)
        alone = nn.Parameter(torch.zeros(()))
        opt = optim.SGD([alone], lr=0.1, momentum=0.9)
        for _ in range(4):
            alone.grad = torch.ones(())
            opt.step()
        for name, value in (await group[0].net.state_dict()).items():
            torch.testing.assert_close(before[name] - value, torch.full_like(value, 12.0 - alone.item()))


async def test_a_step_with_a_scaler_says_what_the_policy_made_of_it() -> None:
    async with trainers(2, tc.policies.Quorum(1, of=2)) as (_, (fast, slow)):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        async with slow.client.context() as ctx:
            await ctx.backward(scaler.scale((await slow.net(torch.ones(1, 3))).sum()))
            await fast.step(batches(1)[0])
            stepped = await slow.opt.step(ctx, scaler=scaler)
        assert stepped is not None and (stepped.dropped, stepped.staleness, stepped.counted) == ("late", 1, 0)
