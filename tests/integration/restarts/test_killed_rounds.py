"""Rounds of policies on an owner that is killed: every gradient counts once, as without a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.training.optimizers import HostedOptimizer
from tests.conftest import StartProcess
from tests.integration.restarting import Owner
from tests.integration.spanning import waiting
from tests.integration.support import bits
from tests.training import apart
from tests.waiting import until

Kill = Callable[[], Awaitable[None]]


def batch(i: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(i))


class Trainer(NamedTuple):
    """A trainer with its handles."""

    ps: tc.Client
    net: tc.RemoteModule
    opt: tc.DistributedOptimizer

    async def step(self, i: int, joined: bool = False) -> tc.Stepped:
        """One pass, which is repeated if it is lost."""

        async def one(ctx: tc.Context) -> tc.Stepped:
            loss = (await self.net(batch(i))).square().sum()
            if joined:
                return await ctx.backward(loss, step=self.opt)
            await ctx.backward(loss)
            return await self.opt.step(ctx, values={"loss": loss.item()})

        return await self.ps.run(one)


async def begun(address: str, policy: tc.policies.Policy | None) -> Trainer:
    ps = await tc.connect(address)
    net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
    opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1, policy=policy)
    return Trainer(ps, net, opt)


class State(NamedTuple):
    """What has to be the same with and without kills."""

    net: Any
    opt: Any
    version: int
    clocks: list[int]
    most: int
    told: list[Any]


Schedule = Callable[[Trainer, Trainer, Kill, list[Any]], Awaitable[None]]


def told(stepped: tc.Stepped) -> tuple[int, int, int, str]:
    return stepped["ps0"], stepped.staleness, stepped.counted, stepped.dropped


async def state(owner: Owner, policy: tc.policies.Policy | None, schedule: Schedule, kill: Kill) -> State:
    one, two = [await begun(owner.address, policy) for _ in range(2)]
    said: list[Any] = []
    await schedule(one, two, kill, said)
    net, opt = bits(await one.net.state_dict()), bits(await one.opt.state_dict())
    rounds = optimizer_of(owner).aggregator
    assert rounds is not None
    clocks, most = rounds.membership()
    version = optimizer_of(owner).version
    await asyncio.gather(one.ps.close(), two.ps.close())
    return State(net, opt, version, sorted(clocks.values()), most, said)


def optimizer_of(owner: Owner) -> HostedOptimizer:
    (found,) = [
        each.value for each in owner.server.engine.registry.objects() if isinstance(each.value, HostedOptimizer)
    ]
    return found


async def together(one: Trainer, two: Trainer, kill: Kill, said: list[Any]) -> None:
    """Both step at once, again and again, and the owner is killed between, and while one waits."""
    for i in range(0, 8, 2):
        found = await asyncio.gather(one.step(i), two.step(i + 1))
        said.extend(map(told, found))
        if i % 4:
            await kill()


async def alternating(one: Trainer, two: Trainer, kill: Kill, said: list[Any]) -> None:
    """One after the other; the owner is killed after each third step."""
    for i in range(9):
        stepped = await (one, two)[i % 2].step(i, joined=i % 3 == 0)
        said.append(told(stepped))
        if i % 3 == 2:
            await kill()


async def unevenly(one: Trainer, two: Trainer, kill: Kill, said: list[Any]) -> None:
    """The first one is ahead of the other, as far as it may be."""
    for i in range(3):
        said.append(told(await apart(one.step(10 * i))))
        await kill()
        said.append(told(await one.step(10 * i + 1)))
        said.append(told(await two.step(10 * i + 2)))
        await kill()
        said.append(told(await two.step(10 * i + 3)))


async def late(one: Trainer, two: Trainer, kill: Kill, said: list[Any]) -> None:
    """The gradient of one of two trainers is a step behind."""
    for i in range(3):
        async with two.ps.context() as ctx:
            await ctx.backward((await two.net(batch(i))).square().sum())
            said.append(told(await apart(one.step(10 * i))))
            said.append(told(await two.opt.step(ctx)))
        await kill()


P = tc.policies
SCHEDULES: list[tuple[P.Policy, Schedule]] = [
    (P.Sync(2), together),
    (P.Quorum(3, reduce="sum"), alternating),
    (P.Quorum(4, stale=P.Scale()), late),
    (P.Quorum(1, of=2), late),
    (P.Quorum(1, of=2, late="next", stale=P.Scale()), late),
    (P.BoundedStaleness(2), unevenly),
    (P.BoundedStaleness(3, stale=P.Compensate()), late),
    (P.Async(P.Reject(0)), late),
]


@pytest.mark.parametrize(
    ("durability", "policy", "schedule"),
    [("interval:0.01", *SCHEDULES[0]), *(("always", *each) for each in SCHEDULES[1:])],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
async def test_rounds_are_as_without_a_kill(
    tmp_path: Path, durability: str, policy: P.Policy, schedule: Schedule
) -> None:
    async def nothing() -> None:
        pass

    async with Owner(tmp_path / "whole") as owner:
        expected = await state(owner, policy, schedule, nothing)
    async with Owner(tmp_path / "killed", durability=durability) as owner:
        assert await state(owner, policy, schedule, owner.crash) == expected


@pytest.mark.parametrize(("policy", "schedule"), [(P.Quorum(4), alternating), (P.Async(P.Compensate()), late)])
async def test_rounds_are_as_without_a_kill_across_checkpoints(
    tmp_path: Path, policy: P.Policy, schedule: Schedule
) -> None:
    async def nothing() -> None:
        pass

    async with Owner(tmp_path / "whole") as owner:
        expected = await state(owner, policy, schedule, nothing)
    async with Owner(tmp_path / "killed", durability="always") as owner:
        kills = 0

        async def kill() -> None:
            nonlocal kills
            kills += 1
            if kills % 2:
                await asyncio.to_thread(owner.server.engine.checkpoints.write)
            await owner.crash()

        assert await state(owner, policy, schedule, kill) == expected


async def changing(one: Trainer, two: Trainer, kill: Kill, said: list[Any]) -> None:
    """The policy changes while they train, the first time from none; one leaves, and comes again."""
    said.append(told(await one.step(100)))
    await kill()
    await two.opt.set_policy(P.Sync())
    await kill()
    await together(one, two, kill, said)
    await one.opt.set_policy(P.Quorum(3))
    await kill()
    for i in range(4):
        said.append(told(await (one, two)[i % 2].step(20 + i)))
    await kill()
    await two.opt.set_policy(P.Sync())  # a step with the one gradient that is in the open round
    await kill()
    await two.opt.leave()
    await kill()
    said.append(told(await one.step(30)))
    said.append(told(await one.step(31)))
    await kill()
    await two.opt.set_policy(P.BoundedStaleness(1))
    said.append(told(await two.step(32)))  # comes again, where the other one is
    await kill()
    said.append(told(await one.step(33)))
    said.append(told(await one.step(34)))
    await one.opt.set_policy(P.Async())
    await kill()
    said.append(told(await two.step(35)))


async def test_changes_of_policies_and_of_trainers_are_as_without_a_kill(tmp_path: Path) -> None:
    async def nothing() -> None:
        pass

    async with Owner(tmp_path / "whole") as owner:
        expected = await state(owner, None, changing, nothing)
    async with Owner(tmp_path / "killed", durability="always") as owner:
        assert await state(owner, None, changing, owner.crash) == expected


async def test_an_owner_process_that_is_killed_goes_on_with_its_rounds(
    start_process: StartProcess, tmp_path: Path
) -> None:
    flags = ("--name", "ps0", "--data-dir", str(tmp_path), "--durability", "interval:1")
    process = await start_process(*flags)
    one, two = [await begun(process.address, P.Sync(2)) for _ in range(2)]
    torch.manual_seed(1)
    local = nn.Linear(4, 2)
    local_opt = optim.Adam(local.parameters(), lr=0.1)
    for i in range(0, 8, 2):
        steps = [asyncio.create_task(each.step(i + place)) for place, each in enumerate((one, two))]
        if i % 4 == 2:
            await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)  # maybe only one of two answers is there
            process.process.kill()
            await process.process.wait()
            process = await start_process(*flags, "--listen", process.address)
        assert [each["ps0"] for each in await asyncio.gather(*steps)] == [i // 2 + 1] * 2
        local_opt.zero_grad()
        found = []
        for place in range(2):
            local(batch(i + place)).square().sum().backward()
            found.append([each.grad for each in local.parameters()])
            local_opt.zero_grad()
        for each, *of in zip(local.parameters(), *found, strict=True):
            each.grad = (of[0] + of[1]) / 2
        local_opt.step()
    assert bits(await one.net.state_dict()) == bits(dict(local.state_dict()))
    assert bits(await one.opt.state_dict()) == bits(local_opt.state_dict())
    await asyncio.gather(one.ps.close(), two.ps.close())


async def test_an_offer_that_waits_is_made_again(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability="always") as owner:
        one, two = [await begun(owner.address, P.Sync(2)) for _ in range(2)]
        first = asyncio.create_task(one.step(1))
        await until(lambda: waiting(owner.server) == 1)
        await owner.crash()
        found = await asyncio.gather(first, two.step(2))
        assert [told(each) for each in found] == [(1, 0, 2, "")] * 2
        await asyncio.gather(one.ps.close(), two.ps.close())
