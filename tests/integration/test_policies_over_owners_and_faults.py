"""Tests of policies over several owners: steps count once wherever a stream breaks, and rounds outlive a restart."""

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
from ps_service.policies.offers import OfferKey
from ps_service.requests import round_messages
from ps_service.rpc.servicer import Servicer
from tests.integration import support
from tests.integration.breaking import for_each, same_wherever_it_breaks
from tests.integration.restarting import Owner
from tests.integration.spanning import Trainer, batches, begun, hosted, trainers
from tests.integration.support import AFFINE, bits, until
from trainer_client.transport.faulty import Fault, FaultyConnector, Plan
from trainer_client.transport.in_process import MemoryConnector

POLICIES: dict[str, tc.policies.Policy] = {
    "sync": tc.policies.Sync(2, "sum"),
    "bounded": tc.policies.BoundedStaleness(0),
    "any": tc.policies.Quorum(2),
}


async def step(client: tc.Client, nets: list[tc.RemoteModule], opt: tc.DistributedOptimizer, value: float) -> None:
    """A pass whose gradients do not depend on the parameters, so that the order of steps does not matter."""
    async with client.context() as ctx:
        x = torch.full((2, 3), value)
        outputs = [await net(x) for net in nets]
        await ctx.backward(torch.stack(outputs).sum())
        await opt.step(ctx)


async def job(policy: tc.policies.Policy, plan: Plan) -> list[Any]:
    """Two trainers with one optimizer over two owners; its state in the end.

    The plan breaks a stream between the first trainer and an owner.
    """
    async with AsyncExitStack() as stack:
        connectors = []
        for name in ("ps0", "ps1"):
            owner = support.engine(name)
            stack.push_async_callback(asyncio.to_thread, owner.close)
            servicer = Servicer(owner)
            stack.callback(servicer.close)
            connectors.append(servicer)
        parts = []
        for number in range(2):
            lines: list[Any] = [MemoryConnector(servicer.serve) for servicer in connectors]
            if number == 0:
                lines = [FaultyConnector(line, plan) for line in lines]
            client = await stack.enter_async_context(tc.connect(*lines))
            nets = [await client.module(AFFINE, 3, 2, name=f"net{n}", seed=0, owner=n) for n in ("ps0", "ps1")]
            opt = await client.optimizer(
                optim.SGD, [each for net in nets for each in net.parameters()], lr=0.1, momentum=0.9, policy=policy
            )
            parts.append((client, nets, opt))
        for number in range(2):
            await asyncio.gather(*(step(*each, number + 1.0) for each in parts))
        client, nets, opt = parts[1]
        versions = 4 if isinstance(policy, tc.policies.BoundedStaleness) else 2
        if isinstance(policy, tc.policies.Quorum):
            await opt.set_policy(tc.policies.Sync(2))  # brings the last decisions
        for name in ("ps0", "ps1"):
            await until(client, lambda status: status.optimizers[0].version == versions, name)
        return bits([[await net.state_dict() for net in nets], await opt.state_dict()])


@for_each(POLICIES, twice=["sync"])
async def test_a_step_counts_once_wherever_the_stream_breaks(policy: tc.policies.Policy, fault: Fault) -> None:
    # The owner that decides gets the step, and the other one what it is to hold and what was decided. The rest of a
    # pass is the same in every policy.
    await same_wherever_it_breaks(lambda plan: job(policy, plan), fault, kinds=["step", "hold", "settle"])


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[list[Owner]]:
    async with Owner(tmp_path / "0", "ps0") as first, Owner(tmp_path / "1", "ps1") as second:
        yield [first, second]


@pytest.fixture
async def trainer(places: list[Owner]) -> AsyncIterator[Trainer]:
    async with tc.connect(*(each.address for each in places)) as ps:
        yield await begun(ps, ["ps0", "ps1"], tc.policies.Sync(1))


async def versions(trainer: Trainer) -> list[tuple[str, int]]:
    told = [(await trainer.client.status(name)).optimizers[0] for name in ("ps0", "ps1")]
    return [(each.policy, each.version) for each in told]


@pytest.mark.parametrize("restarted", [(0,), (1,)], ids=str)
async def test_rounds_go_on_after_a_restart(places: list[Owner], trainer: Trainer, restarted: tuple[int, ...]) -> None:
    x = torch.ones(2, 3)
    await trainer.step(x)
    await trainer.opt.set_policy(tc.policies.Quorum(1, of=1, stale=tc.policies.Scale()))
    await trainer.step(x)
    for place in restarted:
        await places[place].restart()
    policy = str(tc.policies.Quorum(1, of=1, stale=tc.policies.Scale()))
    assert await versions(trainer) == [(policy, 2)] * 2
    assert await trainer.step(x) == {"ps0": 3, "ps1": 3}
    async with tc.connect(*(each.address for each in places)) as ps:
        other = await begun(ps, ["ps0", "ps1"], None)
        assert await other.step(x) == {"ps0": 4, "ps1": 4}
        assert await trainer.step(x) == {"ps0": 5, "ps1": 5}


async def test_an_owner_that_has_lost_gradients_of_a_round_says_so(places: list[Owner], trainer: Trainer) -> None:
    x = torch.ones(2, 3)
    await trainer.opt.set_policy(tc.policies.Quorum(2))
    await trainer.step(x)
    before = [await net.state_dict() for net in trainer.nets]
    await places[1].restart()
    with pytest.raises(tc.errors.ContextLostError, match="owner 'ps1' has lost 1 of the"):
        await trainer.step(x)
        await trainer.step(x)
    assert [version for _, version in await versions(trainer)] == [1, 1]
    # ps1 has stepped with half of the sum: the gradients of the other trainer's offer.
    after = await trainer.nets[1].state_dict()
    assert any(not torch.equal(after[name], before[1][name]) for name in after)


async def test_gradients_that_a_decision_is_about_to_take_are_not_released() -> None:
    async with trainers(1, tc.policies.Async()) as (servers, (one,)):
        following = hosted(servers[1]).aggregator.following  # type: ignore[union-attr]
        assert following is not None
        rounds = one.opt._rounds
        assert rounds is not None
        before = await one.nets[1].state_dict()
        async with one.client.context() as ctx:
            await ctx.backward(await one.loss(batches(1)[0]))
            epoch = rounds._epoch
            decisions = (await rounds._offer(ctx, 77, epoch, {}, {})).reply.decisions
            key = OfferKey(one.client.trainer, 77, epoch)
            later: list[Any] = []
            following.queue.submit = later.append
            following.settle(key, decisions.base, round_messages.read(decisions))
            assert not following.release(key)
            for work in later:
                work()()
            following.queue.submit = servers[1].engine.compute.submit
        after = await one.nets[1].state_dict()
        assert hosted(servers[1]).version == 1 and not torch.equal(before["weight"], after["weight"])
