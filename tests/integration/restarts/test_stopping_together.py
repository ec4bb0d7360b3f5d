"""Several owners are stopped at once, while passes are open on some of them that need others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_wire.refs import ContextId
from tests import waiting
from tests.integration.restarting import WEIGHTED, Owner, owners

DRAIN_SECONDS = 600.0
"""Longer than a test may take: none of these stops may need it."""


class Net:
    """A trainer of a weight on each of two owners, from which every step takes one.

    Attributes:
        ps: The trainer.
        parts: The modules, one on each owner.
        opt: The optimizer of both.
    """

    def __init__(self, ps: tc.Client) -> None:
        self.ps = ps
        self.parts: list[Any] = []
        self.opt: Any = None

    async def attach(self) -> None:
        owners = self.ps.owners
        self.parts = [await self.ps.module(WEIGHTED, torch.zeros(1), name=name, owner=name) for name in owners]
        self.opt = await self.ps.optimizer(optim.SGD, [each.parameter("weight") for each in self.parts], lr=1.0)

    async def finish(self, ctx: tc.Context, first: torch.Tensor, other: int) -> dict[str, int]:
        """Calls the other part, and steps both."""
        loss = first.sum() + (await self.parts[other](torch.ones(1))).sum()
        await ctx.backward(loss)
        return await self.opt.step(ctx)  # type: ignore[no-any-return]


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[list[Owner]]:
    """Two owners with data directories."""
    async with AsyncExitStack() as stack:
        yield await owners(stack, tmp_path, "ps0", "ps1")


@pytest.fixture
async def net(both: list[Owner]) -> AsyncIterator[Net]:
    """A trainer of both."""
    async with tc.connect(*(owner.address for owner in both)) as ps:
        net = Net(ps)
        await net.attach()
        yield net


def draining(owner: Owner) -> asyncio.Task[None]:
    """Stops an owner, as SIGTERM does it."""
    return asyncio.create_task(owner.server.drain(DRAIN_SECONDS))


async def refuses(*some: Owner) -> None:
    """Waits until these owners take no new work."""
    await waiting.until(lambda: all(owner.server.engine.draining for owner in some))


async def stopped(*stops: asyncio.Task[None]) -> None:
    async with asyncio.timeout(50):
        await asyncio.gather(*stops)


def held_up(owner: Owner) -> set[ContextId]:
    """The passes for which an owner would not wait."""
    return {id for session in owner.server.engine.sessions.all() for id in session.held_up}


async def test_owners_do_not_wait_for_passes_that_wait_for_each_other(both: list[Owner], net: Net) -> None:
    begun = [asyncio.Event(), asyncio.Event()]
    stopping = asyncio.Event()
    attempts = [0, 0]

    async def one(ctx: tc.Context, number: int) -> dict[str, int]:
        attempts[number] += 1
        first = await net.parts[number](torch.ones(1))
        begun[number].set()
        await stopping.wait()
        return await net.finish(ctx, first, 1 - number)

    passes = [net.ps.run(one, number, attempts=1) for number in range(2)]
    for each in begun:
        await each.wait()
    stops = [draining(owner) for owner in both]
    await refuses(*both)
    stopping.set()
    await stopped(*stops)
    for owner in both:
        await owner.start()
    versions = [await each for each in passes]
    assert sorted(each["ps0"] for each in versions) == sorted(each["ps1"] for each in versions) == [1, 2]
    assert attempts == [2, 2]
    for part in net.parts:
        assert (await part.state_dict())["weight"].item() == -2.0


async def test_an_owner_does_not_wait_for_a_pass_that_waits_for_one_that_is_away(both: list[Owner], net: Net) -> None:
    begun, away, attempts = asyncio.Event(), asyncio.Event(), 0

    async def one(ctx: tc.Context) -> dict[str, int]:
        nonlocal attempts
        attempts += 1
        first = await net.parts[1](torch.ones(1))
        begun.set()
        await away.wait()
        return await net.finish(ctx, first, 0)

    training = net.ps.run(one, attempts=1)
    await begun.wait()
    await stopped(draining(both[0]))
    stop = draining(both[1])
    await refuses(both[1])
    away.set()
    await stopped(stop)
    for owner in both:
        await owner.start()
    assert await training == {"ps0": 1, "ps1": 1}
    assert attempts == 2
    for part in net.parts:
        assert (await part.state_dict())["weight"].item() == -1.0


async def test_a_step_that_one_owner_has_applied_counts_once(both: list[Owner], net: Net) -> None:
    """The other owner is away before it has the step, and the pass is still open on both."""
    begun, away, attempts = asyncio.Event(), asyncio.Event(), 0

    async def one(ctx: tc.Context) -> dict[str, int]:
        nonlocal attempts
        attempts += 1
        await ctx.backward((await net.parts[0](torch.ones(1))).sum() + (await net.parts[1](torch.ones(1))).sum())
        begun.set()
        await away.wait()
        return await net.opt.step(ctx)  # type: ignore[no-any-return]

    training = net.ps.run(one, attempts=1)
    await begun.wait()
    await both[0].server.drain(0)
    away.set()
    optimizer = both[1].server.engine.registry.find(net.opt.remotes["ps1"].handle.ref).value
    await waiting.until(lambda: optimizer.version == 1)
    await stopped(draining(both[1]))
    for owner in both:
        await owner.start()
    assert await training == {"ps0": 1, "ps1": 1}
    assert attempts == 2
    for part in net.parts:
        assert (await part.state_dict())["weight"].item() == -1.0


async def test_an_owner_that_is_there_again_is_tried_before_a_pass_is_given_up(
    both: list[Owner], net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners that restart one after the other are not noticed, whenever trainers would have tried again."""
    async with net.ps.context() as ctx:
        first = await net.parts[1](torch.ones(1))
        with monkeypatch.context() as patch:
            patch.setattr("trainer_client.session.link._FIRST_DELAY", DRAIN_SECONDS)
            await both[0].restart()
            await waiting.until(lambda: net.ps.session("ps0").state == "disconnected")
        finishing = asyncio.create_task(net.finish(ctx, first, 0))
        await asyncio.sleep(0)
        stop = draining(both[1])
        async with asyncio.timeout(50):
            assert await finishing == {"ps0": 1, "ps1": 1}
        ctx.end()
        await stopped(stop)
    await both[1].start()
    assert (await net.parts[1].state_dict())["weight"].item() == -1.0


async def test_a_pass_that_goes_on_is_waited_for(both: list[Owner], net: Net) -> None:
    begun, computed = asyncio.Event(), asyncio.Event()

    async def compute() -> None:
        async with tc.connect(both[1].address) as other, other.context():
            await (await other.attach("ps1"))(torch.ones(1))
            begun.set()
            await computed.wait()

    computing = asyncio.create_task(compute())
    await begun.wait()
    async with net.ps.context() as ctx:
        first = await net.parts[1](torch.ones(1))
        await stopped(draining(both[0]))
        needed = net.parts[0](torch.ones(1))
        stop = draining(both[1])
        await waiting.until(lambda: held_up(both[1]) == {ctx.id})
        needed.cancel()
        await waiting.until(lambda: not held_up(both[1]))
        computed.set()
        await computing
        await ctx.backward(first.sum())
        assert not stop.done()
    await stopped(stop)
    for owner in both:
        await owner.start()
