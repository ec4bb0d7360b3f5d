"""Tests that reported values count once wherever a stream breaks, and however trainers end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import torch
from torch import optim

import trainer_client as tc
from tests.integration.breaking import for_each, no_fault, same_wherever_it_breaks
from tests.integration.support import AFFINE, in_memory
from tests.integration.test_replicas_and_faults import CASES
from trainer_client.transport.faulty import Fault, FaultyConnector, Plan


async def job(policy: tc.policies.Policy, plan: Plan) -> list[Any]:
    """Two trainers push values; the first of them also reads and resets them in between."""
    async with in_memory() as owner, AsyncExitStack() as stack:
        opts, replicas = [], []
        for line in (FaultyConnector(owner.connector(), plan), owner.connector()):
            client = await stack.enter_async_context(tc.connect(line))
            net = await client.module(AFFINE, 3, 2, name="net", seed=0)
            opts.append(await client.optimizer(optim.SGD, net.parameters(), lr=0.5, policy=policy))
            replicas.append(await net.replica())
        read: dict[str, int] = {}
        for number in range(2):
            for replica in replicas:
                replica(torch.ones(2, 3)).sum().backward()
            await asyncio.gather(
                *(
                    each.push(opt, values={"n": 1, "where": 10**number}, reduce="sum")
                    for each, opt in zip(replicas, opts, strict=True)
                )
            )
            # With a quorum of any trainers, a push is answered before its round is applied.
            for name, value in (await opts[0].values()).items():
                read[name] = read.get(name, 0) + value
        while read["n"] < 4:
            for name, value in (await opts[0].values()).items():
                read[name] += value
        return sorted(read.items())


@for_each(CASES)
async def test_values_count_once_wherever_the_stream_breaks(policy: tc.policies.Policy, fault: Fault) -> None:
    assert await job(policy, no_fault) == [("n", 4), ("where", 22)]
    await same_wherever_it_breaks(lambda plan: job(policy, plan), fault, kinds=["push", "reported"])
