"""Tests that programs which only read a table take no part in the rounds of its policy, and hold nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

import trainer_client as tc
from tests.conftest import StartOwner

IDS = torch.tensor([1, 2, 3, 4, 5, 6])


@pytest_asyncio.fixture(params=[1, 2], ids=["one owner", "two owners"])
async def clients(request: pytest.FixtureRequest, start_owner: StartOwner) -> AsyncIterator[tuple[tc.Client, ...]]:
    """Three trainers of the same owners."""
    addresses = [(await start_owner(f"ps{number}")).address for number in range(request.param)]
    async with tc.connect(*addresses) as one, tc.connect(*addresses) as two, tc.connect(*addresses) as three:
        yield one, two, three


async def table(ps: tc.Client, policy: tc.policies.Policy | None = None) -> tc.Table:
    return await ps.table("items", 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), policy=policy)


async def step(ps: tc.Client, items: tc.Table) -> Any:
    """A pass with its step."""
    async with ps.context() as ctx:
        await ctx.backward((await items(IDS)).sum())
        return await items.step(ctx)


async def apart(ps: tc.Client, items: tc.Table) -> int:
    """The same in a task of its own; how many gradients its round has."""
    return int((await asyncio.create_task(step(ps, items))).counted)


async def members(ps: tc.Client) -> int:
    (only,) = (await ps.status()).optimizers
    return only.members


async def until_members(ps: tc.Client, count: int) -> None:
    async with asyncio.timeout(60):
        while await members(ps) != count:
            pass


@pytest.mark.parametrize(
    ("clients", "policy"),
    [
        *((number, tc.policies.Sync()) for number in (1, 2)),
        *((1, tc.policies.BoundedStaleness(0)), (2, tc.policies.Quorum(1, of=1))),
    ],
    indirect=["clients"],
    ids=str,
)
async def test_no_round_waits_for_a_program_that_only_reads(
    clients: tuple[tc.Client, ...], policy: tc.policies.Policy, tmp_path: Path
) -> None:
    trainer, reader, by_name = clients
    items, read = await table(trainer, policy), await table(reader)
    for _ in range(3):
        assert (await step(trainer, items)).counted == 1
        async with reader.context():
            await read(IDS)  # also a look-up that could be trained
        assert torch.equal(await (await by_name.table("items"))(IDS), await read(IDS))
    assert await read.export(tmp_path / "rows") == 6
    await read.upsert(IDS[:1], torch.ones(1, 2))
    assert await members(trainer) == 1


async def test_a_program_takes_part_with_its_first_step(clients: tuple[tc.Client, ...]) -> None:
    one, two, _ = clients
    policy = tc.policies.Sync()
    items, other = await table(one, policy), await table(two, policy)
    assert await members(one) == 0
    assert (await step(one, items)).counted == 1
    late = asyncio.create_task(step(two, other))  # its round waits for the other one, which takes part
    await until_members(one, 2)
    assert (await step(one, items)).counted == (await late).counted == 2
    assert await asyncio.gather(apart(one, items), apart(two, other)) == [2, 2]
    await other.optimizer.leave()
    assert (await step(one, items)).counted == 1


async def test_whoever_sets_the_policy_of_a_table_takes_no_part_for_that(clients: tuple[tc.Client, ...]) -> None:
    trainer, operator, _ = clients
    items, administered = await table(trainer), await table(operator)
    assert (await step(trainer, items)).counted == 1
    await administered.optimizer.set_policy(tc.policies.Sync())
    for _ in range(2):
        assert (await step(trainer, items)).counted == 1
    assert await members(trainer) == 1


async def test_whoever_asks_for_an_optimizer_of_a_module_takes_part(ps: tc.Client, ps2: tc.Client) -> None:
    for client in ps, ps2:
        net = await client.module("torch.nn.Linear", 2, 1, name="net")
        opt = await client.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, policy=tc.policies.Sync())
    assert await members(ps) == 2
    await opt.leave()
    assert await members(ps) == 1
