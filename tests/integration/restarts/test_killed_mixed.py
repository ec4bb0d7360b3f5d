"""Tables with policies, steps of tables and modules together, and checkpoints between, on owners that are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.durability.live import table_writing
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import Action, checkpoint
from tests.integration.restarts.test_killed_tables import IDS, Kill, rows_of
from tests.integration.support import bits
from trainer_client.tables.together import OptimizerWithTables

Program = Callable[[tc.Client, Kill], Awaitable[Any]]


async def run(folder: Path, program: Program, durability: str) -> Any:
    """What a program returns whose owner is killed where it says so, every second time behind a checkpoint, if it has a
    log."""
    kills = 0
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(Owner(folder / durability, durability=durability))
        ps = await stack.enter_async_context(tc.connect(owner.address))

        async def kill() -> None:
            nonlocal kills
            kills += 1
            if durability != "off":
                if kills % 2 == 0:
                    await asyncio.to_thread(owner.server.engine.checkpoints.write)
                await owner.crash()

        return await program(ps, kill)


async def pooled(ps: tc.Client, kill: Kill) -> Any:
    """Every gradient of the table is answered before its round is complete; rows go meanwhile."""
    items = await ps.table("items", 3, tc.tables.Adagrad(0.5), init=tc.tables.Normal(1.0), policy=tc.policies.Quorum(3))
    for step in range(8):
        async with ps.context() as ctx:
            await ctx.backward((await items(IDS + step)).square().sum(), step=items.optimizer)
        if step == 3:
            await items.remove(IDS[:2] + step)
        if step % 3 != 2:
            await kill()
    return await rows_of(items)


async def in_rounds(ps: tc.Client, kill: Kill) -> Any:
    items = await ps.table("items", 3, tc.tables.LazyAdam(0.5), policy=tc.policies.Sync(1))
    net = await ps.module(nn.Linear, 3, 2, name="net", seed=1)
    opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1, policy=tc.policies.BoundedStaleness(2))
    for step in range(4):
        async with ps.context() as ctx:
            await ctx.backward((await net(await items(IDS + step))).square().sum(), step=[items.optimizer, opt])
        await kill()
    return await rows_of(items), bits(await net.state_dict()), bits(await opt.state_dict())


async def together(ps: tc.Client, kill: Kill) -> Any:
    items = await ps.table("items", 3, tc.tables.SGD(0.5, momentum=0.9))
    other = await ps.table("other", 3, tc.tables.FTRL(0.5))
    net = await ps.module(nn.Linear, 3, 2, name="net", seed=1)
    opt = await ps.optimizer(optim.SGD, [items, other, *net.parameters()], lr=0.1, momentum=0.9)
    for step in range(4):
        async with ps.context() as ctx:
            found = await items(IDS + step) + await other(IDS - step)
            loss = (await net(found)).square().sum()
            if step % 2:
                await ctx.backward(loss, step=opt)
            else:
                await ctx.backward(loss)
                await opt.step(ctx)
        await kill()
    return await rows_of(items, other), bits(await net.state_dict())


async def evicted(ps: tc.Client, kill: Kill) -> Any:
    """A table that is full, and admits ids when they come again."""
    items = await ps.table(
        "items",
        2,
        tc.tables.Adagrad(0.5),
        max_rows=12,
        admit=tc.tables.AfterSightings(2),
        evict=tc.tables.Eviction(at_capacity="least_frequent", spare=0.0),
    )
    for step in range(6):
        for _ in range(2):
            async with ps.context() as ctx:
                found = await items(torch.arange(6) + 3 * step)
                await ctx.backward(found.square().sum() + found.sum(), step=items.optimizer)
        await kill()
    return await rows_of(items)


@pytest.mark.parametrize("program", [pooled, in_rounds, together, evicted])
async def test_it_is_as_without_the_kills(tmp_path: Path, program: Program) -> None:
    expected = await run(tmp_path, program, "off")
    assert await run(tmp_path, program, "interval:0.01") == expected


@pytest.mark.parametrize("full", [False, True])
async def test_rows_may_come_and_go_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: Callable[[Action], None], full: bool
) -> None:
    monkeypatch.setattr(table_writing, "BLOCK_ROWS", 2)
    monkeypatch.setattr(table_writing, "FILE_BYTES", 1)
    # With so small a share no rows go by themselves.
    evict = tc.tables.Eviction(at_capacity="least_recent", spare=0.0, share=0.01) if full else None
    async with Owner(tmp_path, durability="interval:0.01") as owner, tc.connect(owner.address) as ps:
        items = await ps.table("items", 2, tc.tables.LazyAdam(0.5), max_rows=16 if full else None, evict=evict)
        count = 0

        async def train() -> None:
            nonlocal count
            count += 1
            async with ps.context() as ctx:
                found = await items(torch.arange(5 * count, 5 * count + 12))
                await ctx.backward(found.square().sum() + found.sum(), step=items.optimizer)
            if not full:
                await items.remove(torch.arange(3 * count, 3 * count + 7))

        for _ in range(12):
            await train()
        before = count
        between(train)
        await checkpoint(owner)
        assert count >= before + 5
        await train()
        expected = await rows_of(items)
        await owner.crash()
        assert await rows_of(items) == expected
        await train()


async def test_rows_that_were_prepared_are_stepped_by_all_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = OptimizerWithTables._step_on_owners

    async def program(durability: str) -> Any:
        folder = tmp_path / durability
        names = ("ps0", "ps1")
        async with AsyncExitStack() as stack:
            owners = [
                await stack.enter_async_context(Owner(folder / name, name, durability=durability)) for name in names
            ]
            ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
            items = await ps.table("items", 3, tc.tables.LazyAdam(0.5), owners=names)
            net = await ps.module(nn.Linear, 3, 2, name="net", seed=1, owner="ps1")
            opt = await ps.optimizer(optim.Adam, [items, *net.parameters()], lr=0.1)

            async def killed(self: Any, *arguments: Any) -> Any:
                for each in owners if durability != "off" else ():
                    if step in (1, 2):
                        await asyncio.to_thread(each.server.engine.checkpoints.write)
                    await each.crash()
                return await own(self, *arguments)

            monkeypatch.setattr(OptimizerWithTables, "_step_on_owners", killed)
            for step in range(4):
                async with ps.context() as ctx:
                    await ctx.backward((await net(await items(IDS + step))).square().sum())
                    await opt.step(ctx)
                if durability != "off":
                    await owners[step % 2].crash()
            assert not any(each.server.engine.prepared.all() for each in owners)
            return await rows_of(items), bits(await net.state_dict())

    assert await program("always") == await program("off")
