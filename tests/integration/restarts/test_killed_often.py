"""Trainers go on while their owners are killed at any moment: each gradient counts exactly once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.training.optimizers import HostedOptimizer
from tests.integration.restarting import Owner

P = tc.policies
KILLS = 3


def optimizer_of(owner: Owner) -> HostedOptimizer:
    (found,) = [
        each.value for each in owner.server.engine.registry.objects() if isinstance(each.value, HostedOptimizer)
    ]
    return found


async def killing(owners: list[Owner], made: asyncio.Semaphore, stop: asyncio.Event) -> None:
    """Kills owners, each time after some more steps, at once or a moment later."""
    chosen = random.Random(7)
    for _ in range(KILLS):
        for _ in range(chosen.randrange(1, 9)):
            await made.acquire()
        for _ in range(chosen.randrange(40)):
            await asyncio.sleep(0)
        await chosen.choice(owners).crash()
    stop.set()


Turn = Callable[[], Awaitable[Any]]


async def train(turn: Turn, made: asyncio.Semaphore, stop: asyncio.Event) -> int:
    done = 0
    while not stop.is_set():
        await turn()
        done += 1
        made.release()
    return done


@pytest.mark.parametrize(
    ("policy", "pushes"),
    [(P.Quorum(3), True), (P.Async(P.Scale()), True), (P.BoundedStaleness(1000), False)],
    ids=["quorum, pushes", "async, pushes", "bounded_staleness, passes"],
)
async def test_gradients_of_rounds_count_once(tmp_path: Path, policy: P.Policy, pushes: bool) -> None:
    made, stop = asyncio.Semaphore(0), asyncio.Event()

    async def one(ps: tc.Client, seed: int) -> int:
        net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.001, policy=policy)
        replica = await net.replica()
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))

        async def step(ctx: tc.Context) -> None:
            await ctx.backward((await net(x)).square().sum(), step=opt)

        async def push() -> None:
            replica(x).square().sum().backward()
            await replica.push(opt)

        return await train(push if pushes else lambda: ps.run(step, attempts=100), made, stop)

    async with Owner(tmp_path, durability="interval:0.01") as owner, AsyncExitStack() as stack:
        tasks = []
        for seed in range(3):
            ps = await stack.enter_async_context(tc.connect(owner.address, timeout=300, reconnect_timeout=300))
            tasks.append(asyncio.create_task(one(ps, seed)))
        await killing([owner], made, stop)
        done = await asyncio.gather(*tasks)
        optimizer = optimizer_of(owner)
        assert optimizer.aggregator is not None
        counted = optimizer.version * (3 if isinstance(policy, P.Quorum) else 1)
        assert counted + len(optimizer.aggregator.open_round.counted) == sum(done)


async def test_rounds_of_all_are_made_once(tmp_path: Path) -> None:
    made, stop = asyncio.Semaphore(0), asyncio.Event()
    async with Owner(tmp_path, durability="always") as owner, AsyncExitStack() as stack:
        trainers = []
        for _ in range(2):
            ps = await stack.enter_async_context(tc.connect(owner.address, timeout=300, reconnect_timeout=300))
            net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
            trainers.append((ps, net, await ps.optimizer(optim.SGD, net.parameters(), lr=0.001, policy=P.Sync(2))))

        async def step(ctx: tc.Context, net: tc.RemoteModule, opt: tc.DistributedOptimizer) -> None:
            await ctx.backward((await net(torch.ones(2, 4))).square().sum(), step=opt)

        async def both() -> None:
            await asyncio.gather(*(ps.run(step, net, opt, attempts=100) for ps, net, opt in trainers))

        training = asyncio.create_task(train(both, made, stop))
        await killing([owner], made, stop)
        done = await training
        assert optimizer_of(owner).version == done
        rounds = optimizer_of(owner).aggregator
        assert rounds is not None and sorted(rounds.membership()[0].values()) == [done, done]


async def test_steps_over_owners_are_made_once_by_all(tmp_path: Path) -> None:
    made, stop = asyncio.Semaphore(0), asyncio.Event()
    async with AsyncExitStack() as stack:
        names = ("ps0", "ps1")
        owners = [await stack.enter_async_context(Owner(tmp_path / each, each, durability="always")) for each in names]
        addresses = [each.address for each in owners]
        ps = await stack.enter_async_context(tc.connect(*addresses, timeout=300, reconnect_timeout=300))
        nets = [await ps.module(nn.Linear, 4, 4, name=f"net-{name}", owner=name, seed=1) for name in names]
        opt = await ps.optimizer(optim.SGD, [each for net in nets for each in net.parameters()], lr=0.001)

        async def step(ctx: tc.Context) -> Any:
            await ctx.backward((await nets[1](await nets[0](torch.ones(2, 4)))).square().sum())
            return await opt.step(ctx)

        training = asyncio.create_task(train(lambda: ps.run(step, attempts=100), made, stop))
        await killing(owners, made, stop)
        done = await training
        assert [optimizer_of(each).version for each in owners] == [done, done]


@pytest.mark.parametrize("policy", [P.Sync(2), P.Quorum(3), P.BoundedStaleness(1000)], ids=lambda of: of.kind)
async def test_rounds_over_owners_take_the_same_gradients_once(tmp_path: Path, policy: P.Policy) -> None:
    """Equal layers on two owners stay equal, bit by bit."""
    made, stop, names = asyncio.Semaphore(0), asyncio.Event(), ("ps0", "ps1")
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(Owner(tmp_path / each, each, durability="always")) for each in names]
        trainers = []
        for _ in range(2):
            addresses = [each.address for each in owners]
            ps = await stack.enter_async_context(tc.connect(*addresses, timeout=300, reconnect_timeout=300))
            nets = [await ps.module(nn.Linear, 4, 2, name=f"net-{name}", owner=name, seed=1) for name in names]
            parameters = [each for net in nets for each in net.parameters()]
            trainers.append((ps, nets, await ps.optimizer(optim.SGD, parameters, lr=0.001, policy=policy)))
        xs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]

        async def step(ctx: tc.Context, place: int) -> Any:
            _, nets, opt = trainers[place]
            # The gradients depend on no parameters: others may step one owner between the two calls.
            await ctx.backward(sum([(await net(xs[place])).sum() for net in nets]))
            return await opt.step(ctx)

        async def one(place: int) -> None:
            await trainers[place][0].run(step, place, attempts=100)

        async def both() -> None:
            await asyncio.gather(one(0), one(1))

        if isinstance(policy, P.Sync):
            training = [asyncio.create_task(train(both, made, stop))]
        else:
            training = [asyncio.create_task(train(lambda place=place: one(place), made, stop)) for place in range(2)]  # type: ignore[misc]
        await killing(owners, made, stop)
        done = sum(await asyncio.gather(*training))
        rounds = optimizer_of(owners[0]).aggregator
        assert rounds is not None
        counted = optimizer_of(owners[0]).version * (3 if isinstance(policy, P.Quorum) else 1)
        assert counted + len(rounds.open_round.counted) == done
        # What a trainer has not brought to the other owner any more comes with the next step.
        await trainers[0][2].set_policy(P.Async())
        await one(0)
        assert optimizer_of(owners[0]).version == optimizer_of(owners[1]).version
        one_net, other = [await net.state_dict() for net in trainers[0][1]]
        assert all(torch.equal(one_net[name], other[name]) for name in one_net)
