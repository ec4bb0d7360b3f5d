"""Tests that a push counts once wherever a stream breaks, also when its gradients are compressed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_wire.compression.choice import Choice
from tests.integration.breaking import for_each, same_wherever_it_breaks
from tests.integration.restarting import Owner
from tests.integration.support import AFFINE, bits, in_memory, until
from tests.integration.test_policies_and_faults import POLICIES
from trainer_client.transport.faulty import Fault, FaultyConnector, Plan

CASES: dict[str, tc.policies.Policy] = {"plain": tc.policies.Async(), **POLICIES}


async def job(policy: tc.policies.Policy, plan: Plan) -> list[Any]:
    """Two trainers push gradients that do not depend on the parameters, so that the order of pushes does not matter."""
    async with in_memory() as owner, AsyncExitStack() as stack:
        lines = (FaultyConnector(owner.connector(), plan), owner.connector())
        nets, opts, replicas = [], [], []
        for line in lines:
            client = await stack.enter_async_context(tc.connect(line))
            net = await client.module(AFFINE, 3, 2, name="net", seed=0)
            nets.append(net)
            opts.append(await client.optimizer(optim.SGD, net.parameters(), lr=0.5, momentum=0.5, policy=policy))
            replicas.append(await net.replica(compress=Choice(tc.codecs.TopK(0.5), min_numel=0)))
        for step in range(3):
            for replica in replicas:
                # Small whole numbers and halves: their sums are exact in every order.
                replica(torch.full((2, 3), step + 1.0)).sum().backward()
            await asyncio.gather(*(each.push(opt, pull=step > 0) for each, opt in zip(replicas, opts, strict=True)))
        each_alone = policy == tc.policies.Async() or isinstance(policy, tc.policies.BoundedStaleness)
        # With a quorum of any trainers, a push is answered before its round is applied.
        await until(client, lambda status: status.optimizers[0].version == (6 if each_alone else 3))
        for replica in replicas:
            await replica.pull()
        states = [bits(each.module.state_dict()) for each in replicas]
        assert states[0] == states[1] == bits(await nets[1].state_dict())
        return bits([states[0], await opts[1].state_dict()])


@for_each(CASES, twice=["plain", "sync"])
async def test_a_push_counts_once_wherever_the_stream_breaks(policy: tc.policies.Policy, fault: Fault) -> None:
    await same_wherever_it_breaks(lambda plan: job(policy, plan), fault, kinds=["push"])


async def test_a_replica_gets_the_parameters_of_a_restarted_owner(tmp_path: Path) -> None:
    async with Owner(tmp_path / "data") as owner, tc.connect(owner.address) as ps:
        net = await ps.module(AFFINE, 3, 2, name="net", seed=0)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.5)
        replica = await net.replica()

        async def step(value: float) -> None:
            other = await net.replica()
            other(torch.full((1, 3), value)).sum().backward()
            await other.push(opt)

        # As many steps before and after, so that counts alone do not tell the difference.
        await step(1.0)
        assert await replica.pull() == 2
        await owner.restart()
        await step(2.0)
        assert await replica.pull() == 2
        assert bits(replica.module.state_dict()) == bits(await net.state_dict())
        replica(torch.ones(1, 3)).sum().backward()
        assert (await replica.push(opt)).staleness == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("killed", [False, True], ids=["stopped in order", "killed"])
async def test_an_overlapping_push_outlives_a_restart_or_is_an_error(tmp_path: Path, killed: bool) -> None:
    async with Owner(tmp_path / "data") as owner, tc.connect(owner.address) as ps:
        net = await ps.module(AFFINE, 3, 2, name="net", seed=0)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.5)
        replica = await net.replica(overlap=1)
        for _ in range(3):
            replica(torch.ones(1, 3)).sum().backward()
            await replica.push(opt)
            if not killed:
                await owner.restart()
        if killed:
            await owner.crash()
            with pytest.raises(tc.PsError):
                await replica.finish()
                await replica.pull()
            return
        assert [each["ps0"] for each in await replica.finish() if each is not None] == [3]
        await replica.pull()
        assert bits(replica.module.state_dict()) == bits(await net.state_dict())
