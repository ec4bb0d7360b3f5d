"""Tests of tables when streams break, and when owners start again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import torch

import trainer_client as tc
from tests.integration.breaking import same_wherever_it_breaks
from tests.integration.restarting import Owner
from tests.integration.support import bits, in_memory
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector, Plan

IDS = torch.tensor([5, -9, 5, 7, 8])


async def job(ps: tc.Client) -> list[Any]:
    """Everything that a program sees that makes a table and trains it."""
    seen: list[Any] = []
    items = await ps.table("items", 3, tc.tables.RowWiseAdagrad(lr=0.5), init=tc.tables.Normal(1.0))
    users = await ps.table("users", 2, tc.tables.SGD(lr=0.5), init=tc.tables.Normal(1.0))
    opt = await ps.optimizer(None, [items, users])
    for step in range(2):
        async with ps.context() as ctx:
            found, bags = await asyncio.gather(
                ps.look_up({items: IDS + step, users: IDS}), items.bag(IDS, torch.tensor([0, 2]), "mean")
            )
            await ctx.backward(sum(each.square().sum() for each in (*found.values(), bags)))
            seen += [*found.values(), bags.detach(), await (items.step(ctx) if step == 1 else opt.step(ctx))]
    return bits([*seen, await items.size(), await items(torch.arange(-10, 12)), await users(IDS)])


async def run(plan: Plan, work: Callable[[tc.Client], Awaitable[list[Any]]] = job) -> list[Any]:
    async with in_memory() as owner, tc.connect(FaultyConnector(owner.connector(), plan)) as ps:
        return await work(ps)


async def test_a_table_has_the_same_bits_wherever_a_stream_breaks() -> None:
    await same_wherever_it_breaks(run, Fault.CUT_AFTER, Direction.TO_OWNER)


async def keep(ps: tc.Client) -> list[Any]:
    """Everything that a program sees that puts rows, removes them, and has them evicted."""
    items = await ps.table("items", 3, tc.tables.RowWiseAdagrad(lr=0.5), evict=tc.tables.Eviction(ttl=1e9, spare=0.0))
    await items.upsert(IDS.unique(), torch.ones(4, 3))
    seen: list[Any] = [await items.remove(IDS[:1]), await items.size(), await items(IDS)]
    await train(ps, items, 2)
    seen += [(await items.evict(0.5)).rows, await items.size()]
    seen += [block["ids"] async for block in items.blocks()]
    await items.clear()
    await train(ps, items, 1)
    return bits([*seen, await items.size(), await items(IDS)])


async def test_rows_are_put_and_removed_once_wherever_a_stream_breaks() -> None:
    await same_wherever_it_breaks(lambda plan: run(plan, keep), Fault.CUT_AFTER, Direction.TO_OWNER)


ADAM = tc.tables.LazyAdam(lr=0.1)


async def train(ps: tc.Client, items: tc.Table, steps: int) -> None:
    for step in range(steps):
        async with ps.context() as ctx:
            await ctx.backward((await items(IDS + step)).square().sum(), step=items.optimizer)


async def test_a_checkpoint_has_the_rows_and_what_their_optimizer_keeps(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(Owner(tmp_path / name, name)) for name in ("ps0", "ps1")]
        addresses = [each.address for each in owners]
        ps = await stack.enter_async_context(tc.connect(*addresses))
        items = await ps.table("items", 3, ADAM, init=tc.tables.Normal(1.0))
        twin = await ps.table("twin", 3, ADAM, init=tc.tables.Normal(1.0))
        fixed = await ps.table("fixed", 2, rows=100, owners=["ps1"], dtype=torch.bfloat16)
        async with ps.context():
            await fixed(torch.arange(0, 100, 3))
        await train(ps, items, 3)
        await train(ps, twin, 5)
        await ps.requires_grad_(twin.parameters(), False)
        before, kept = await items(IDS), await fixed(torch.arange(100))
        await asyncio.gather(*(each.restart() for each in owners))
        # The handles hold, and so do those of a client that comes now.
        assert torch.equal(await items(IDS), before) and torch.equal(await fixed(torch.arange(100)), kept)
        later = await stack.enter_async_context(tc.connect(*reversed(addresses)))
        again = await later.table("items", 3, ADAM, init=tc.tables.Normal(1.0))
        assert again.optimizer.remotes.keys() == {"ps0", "ps1"}
        sizes = {owner: [each.rows for each in (await ps.status(owner)).tables] for owner in ("ps0", "ps1")}
        assert sum(sum(each) for each in sizes.values()) == await items.size() + await twin.size() + 34
        for step in (3, 4):
            async with later.context() as ctx:
                found = await ctx.backward((await again(IDS + step)).square().sum(), step=again.optimizer)
        # An owner counts the steps that have had a gradient for it.
        assert max(found.values()) == 5
        assert torch.equal(await again(torch.arange(-10, 20)), await twin(torch.arange(-10, 20)))
        async with ps.context():
            assert not (await twin(IDS)).requires_grad, "it is still frozen"


async def test_blocks_of_a_large_table_and_of_one_with_removed_rows(tmp_path: Path) -> None:
    async with Owner(tmp_path) as owner, tc.connect(owner.address) as ps:
        items = await ps.table("items", 2, init=tc.tables.Normal(1.0))
        ids = torch.arange(100_000) * 7919 - 300_000_000
        async with ps.context():
            await items(ids)
        shard = owner.server.engine.registry.named("items").value.shard
        blocks = list(shard.views())
        assert [len(each["ids"]) for each in blocks] == [65_536, 100_000 - 65_536]
        assert blocks[0]["values"].data_ptr() == next(shard.views())["values"].data_ptr(), "no copies"
        shard.remove(ids[5:10])
        before = await items(ids)
        await owner.restart()
        assert torch.equal(await items(ids), before) and await items.size() == 99_995
