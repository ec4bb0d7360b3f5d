"""Tests that a step counts once in every policy wherever a stream breaks, and that policies are kept."""

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
from tests.integration.breaking import for_each, same_wherever_it_breaks
from tests.integration.restarting import Owner
from tests.integration.support import AFFINE, bits, in_memory, until
from trainer_client.transport.faulty import Fault, FaultyConnector, Plan

POLICIES: dict[str, tc.policies.Policy] = {
    "sync": tc.policies.Sync(2, "sum"),
    "bounded": tc.policies.BoundedStaleness(0),
    "quorum": tc.policies.Quorum(2, of=2, late="next"),
    "any": tc.policies.Quorum(2),
}


class Trainer:
    """A trainer of the net.

    Args:
        client: Its client.
        policy: The policy of the optimizer.
    """

    def __init__(self, client: tc.Client, policy: tc.policies.Policy) -> None:
        self.client = client
        self._policy = policy

    async def begin(self) -> None:
        self.net = await self.client.module(AFFINE, 3, 2, name="net", seed=0)
        self.opt = await self.client.optimizer(
            optim.SGD, self.net.parameters(), lr=0.1, momentum=0.9, policy=self._policy
        )

    async def step(self, value: float, joined: bool) -> None:
        """A pass whose gradient does not depend on the parameters, so that the order of steps does not matter."""
        async with self.client.context() as ctx:
            loss = (await self.net(torch.full((2, 3), value))).sum()
            if joined:
                await ctx.backward(loss, step=self.opt)
            else:
                await ctx.backward(loss)
                await self.opt.step(ctx)


async def job(policy: tc.policies.Policy, plan: Plan) -> list[Any]:
    """Two trainers with one optimizer; its state in the end. The plan breaks the stream of the first."""
    async with in_memory() as owner, AsyncExitStack() as stack:
        lines = (FaultyConnector(owner.connector(), plan), owner.connector())
        clients = [await stack.enter_async_context(tc.connect(line)) for line in lines]
        trainers = [Trainer(client, policy) for client in clients]
        for each in trainers:
            await each.begin()
        for step in range(2):
            await asyncio.gather(*(each.step(step + 1.0, step == 0) for each in trainers))
        versions = 4 if isinstance(policy, tc.policies.BoundedStaleness) else 2
        # With a quorum of any trainers, a step is answered before its round is applied.
        await until(clients[1], lambda status: status.optimizers[0].version == versions)
        state = [await trainers[1].net.state_dict(), await trainers[1].opt.state_dict()]
        return bits(state)


@for_each(POLICIES, twice=["any"])
async def test_a_step_counts_once_wherever_the_stream_breaks(policy: tc.policies.Policy, fault: Fault) -> None:
    # The first backward steps, too.
    await same_wherever_it_breaks(lambda plan: job(policy, plan), fault, kinds=["step", "backward"])


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path / "data") as owner:
        yield owner


@pytest.fixture
async def trainer(owner: Owner) -> AsyncIterator[Trainer]:
    async with tc.connect(owner.address) as ps:
        trainer = Trainer(ps, tc.policies.Sync(1))
        await trainer.begin()
        yield trainer


async def test_a_restarted_owner_keeps_the_policy_that_was_set_last(owner: Owner, trainer: Trainer) -> None:
    ps = trainer.client
    await trainer.step(1.0, joined=False)
    await trainer.opt.set_policy(tc.policies.Quorum(2, stale=tc.policies.Scale()))
    await owner.restart()
    (told,) = (await ps.status("ps0")).optimizers
    assert told.policy == str(tc.policies.Quorum(2, stale=tc.policies.Scale())) and told.version == 1
    await trainer.step(1.0, joined=False)
    await trainer.step(1.0, joined=False)
    await trainer.opt.set_policy(tc.policies.Async())
    await owner.restart()
    (told,) = (await ps.status("ps0")).optimizers
    assert (told.policy, told.version) == ("", 2)


async def test_an_owner_that_stops_applies_the_gradients_of_its_open_round(owner: Owner, trainer: Trainer) -> None:
    await trainer.opt.set_policy(tc.policies.Quorum(3))
    before = await trainer.net.state_dict()
    await trainer.step(1.0, joined=False)
    assert bits(await trainer.net.state_dict()) == bits(before)
    await owner.restart()
    (told,) = (await trainer.client.status("ps0")).optimizers
    assert told.version == 1 and bits(await trainer.net.state_dict()) != bits(before)
