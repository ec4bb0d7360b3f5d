"""Rows of tables that others change meanwhile, and disks that are full or broken, on owners that are killed then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.durability.log.log import Log
from ps_service.durability.log.table_log import RequestRows
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import Action, as_both, checkpoint
from tests.integration.restarts.test_killed import MODES, mode
from tests.integration.restarts.test_killed_tables import rows_of, shard_of
from tests.integration.support import bits
from tests.ps_service.tables.test_row_changes import same, state_of

# What the log has of a step does not depend on when the owner answers.
both_in_some_mode = pytest.mark.parametrize(
    ("steps_of_rows", "owner"), [("gradients", MODES[1]), ("rows", MODES[0])], indirect=True
)


@pytest.fixture
async def owner(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, durability=mode(request)) as made:
        yield made


@as_both
async def test_rows_that_go_between_a_step_and_its_record_stay_as_they_are(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = await ps.table("items", 2, tc.tables.RowWiseAdagrad(0.5))
    finish, write, locked = RequestRows.finish, Log.append, []

    def late(rows: RequestRows) -> None:
        shard = shard_of(owner, "items")
        shard.remove(torch.tensor([3, 2, 1]))  # as look-ups of others do in a full table
        shard.look_up(torch.tensor([7, 3]))  # with the numbers of other rows
        finish(rows)

    def append(log: Log, message: bytes, chunks: Sequence[Any] = ()) -> int:
        with ThreadPoolExecutor(1) as another:
            locked.append(another.submit(shard_of(owner, "items").lock.locked).result())
        return write(log, message, chunks)

    async with ps.context() as ctx:
        await ctx.backward((await items(torch.tensor([1, 2, 3]))).sum())
        with monkeypatch.context() as patch:
            patch.setattr(RequestRows, "finish", late)
            patch.setattr(Log, "append", append)
            await items.step(ctx)
    assert locked == [True] * 3  # nothing could come between the rows that were read and the record
    written = await rows_of(items)
    assert {id for _, id in written} == {3, 7}
    await owner.crash()
    assert await rows_of(items) == written


@both_in_some_mode
async def test_trainers_beside_each_other_find_their_rows_again(owner: Owner) -> None:
    evict = tc.tables.Eviction(at_capacity="least_frequent", share=0.1, spare=0.0)
    admit = tc.tables.AfterSightings(2, counters=1 << 12)
    async with AsyncExitStack() as stack:
        trainers = [await stack.enter_async_context(tc.connect(owner.address)) for _ in range(3)]

        async def train(number: int) -> None:
            ps = trainers[number]
            drawn = torch.Generator().manual_seed(number)
            items = await ps.table("items", 2, tc.tables.LazyAdam(0.1), admit=admit, evict=evict, max_rows=64)
            for step in range(8):
                ids = torch.randint(200, (20,), generator=drawn)
                async with ps.context() as ctx:
                    await ctx.backward((await items(ids)).sum(), step=items.optimizer)
                if step % 7 == number:
                    await items.remove(ids[:5])
                if step % 7 == 5:
                    await items.upsert(ids[:3].unique(), torch.ones(len(ids[:3].unique()), 2))
                if step == 7 and not number:
                    await items.evict(0.3)

        for _ in range(2):
            await asyncio.gather(*map(train, range(3)))
            before = shard_of(owner, "items")
            await owner.crash()
            assert same(state_of(shard_of(owner, "items")), state_of(before))


@pytest.mark.parametrize(
    ("steps_of_rows", "what"),
    [("gradients", "step"), ("rows", "step"), ("gradients", "look_up"), ("gradients", "upsert")],
    indirect=["steps_of_rows"],
)
async def test_what_could_not_be_written_is_written_before_what_comes_later(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    items = await ps.table("items", 2, tc.tables.LazyAdam(0.1), init=tc.tables.Zeros())
    net = await ps.module(nn.Linear, 2, 1, seed=1)
    opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1)
    await items.upsert(torch.arange(3), torch.ones(3, 2))
    write = Log.append
    failing = True

    def append(log: Log, message: bytes, chunks: Sequence[Any] = ()) -> int:
        if failing:
            raise OSError(5, "Input/output error")
        return write(log, message, chunks)

    async with ps.context() as ctx:
        await ctx.backward((await net(await items(torch.arange(2)))).sum())
        monkeypatch.setattr(Log, "append", append)
        with pytest.raises(tc.errors.StorageError, match="may be gone when the owner restarts"):
            if what == "step":
                await opt.step(ctx)
            elif what == "look_up":
                await items(torch.tensor([9]))
            else:
                await items.upsert(torch.tensor([2, 8]), torch.full((2, 2), 5.0))
    with pytest.raises(tc.errors.StorageError):
        await items.upsert(torch.arange(3), torch.zeros(3, 2))
    failing = False
    async with ps.context() as ctx:
        await ctx.backward((await net(await items(torch.arange(1, 4)))).sum(), step=opt)
    written = await rows_of(items), bits(await net.state_dict()), bits(await opt.state_dict())
    await owner.crash()
    assert await rows_of(items) == written[0]
    assert bits(await net.state_dict()) == written[1]
    assert bits(await opt.state_dict()) == written[2]
    async with ps.context() as ctx:
        await ctx.backward((await net(await items(torch.arange(1, 4)))).sum())
        versions = await opt.step(ctx)
        assert set(versions.values()) == {3 if what == "step" else 2}


@both_in_some_mode
async def test_a_full_disk_stops_changes_of_rows_and_nothing_else(
    owner: Owner, ps: tc.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = await ps.table("items", 4096, tc.tables.LazyAdam(0.1), evict=tc.tables.Eviction(ttl=1e5))

    async def train(begin: int) -> None:
        async with ps.context() as ctx:
            await ctx.backward((await items(torch.arange(begin, begin + 125))).sum(), step=items.optimizer)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ps_service.durability.log.disk.Disk.create", full)
        with pytest.raises(tc.errors.StorageError, match="No space left on device"):
            for _ in range(400):
                await train(0)
        for _ in range(3):
            with pytest.raises(tc.errors.StorageError):
                await items.upsert(torch.arange(125), torch.ones(125, 4096))
        before = await rows_of(items)
        async with ps.context():
            assert torch.equal(await items(torch.arange(9)), await items(torch.arange(9)))
        assert await rows_of(items) == before
    await train(60)
    written = await rows_of(items)
    assert len(written) == 185
    await owner.crash()
    assert await rows_of(items) == written


@as_both
async def test_steps_while_a_checkpoint_reads_the_rows_count_once(
    owner: Owner, ps: tc.Client, between: Callable[[Action], None]
) -> None:
    items = await ps.table("items", 2, tc.tables.Adagrad(0.5))
    steps = 0

    async def step() -> None:
        nonlocal steps
        steps += 1
        async with ps.context() as ctx:
            await ctx.backward((await items(torch.arange(steps))).square().sum(), step=items.optimizer)

    await step()
    between(step)
    for _ in range(2):
        await checkpoint(owner)
        await step()
    assert steps > 6
    written = await rows_of(items)
    await owner.crash()
    assert await rows_of(items) == written


@pytest.mark.parametrize("evict", [{"ttl": 1e5}, {"at_capacity": "least_recent"}], ids=str)
async def test_rows_grow_no_older_while_a_checkpoint_reads_them(
    owner: Owner, ps: tc.Client, between: Callable[[Action], None], evict: dict[str, Any]
) -> None:
    items = await ps.table("items", 2, evict=tc.tables.Eviction(spare=0.0, **evict))
    clock = shard_of(owner, "items").population._clock
    seconds = 0

    def later() -> float:
        return clock() + seconds

    async def look_up() -> None:
        nonlocal seconds
        seconds += 1000
        async with ps.context():
            await items(torch.tensor([9, seconds]))

    shard_of(owner, "items").population._clock = later  # type: ignore[misc]
    async with ps.context():
        await items(torch.arange(10))
    between(look_up)
    await checkpoint(owner)
    await look_up()
    before = seen_of(owner)
    assert before[0] < before[9] == before[seconds] and len(before) > 12
    await owner.crash()
    assert seen_of(owner) == before


def seen_of(owner: Owner) -> dict[int, int]:
    """When each row of the table was looked up, by its id, in the time of the rows."""
    block, _ = shard_of(owner, "items").copies(0, 1000, now=1 << 60)
    return dict(zip(block["ids"].tolist(), ((1 << 60) - block["age"]).tolist(), strict=True))
