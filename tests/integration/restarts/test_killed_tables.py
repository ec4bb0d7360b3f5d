"""The rows of tables on owners that are killed: as in a run without that, bit for bit."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.durability.resharding.placement import Wanted
from ps_service.durability.resharding.reshard import reshard
from ps_service.tables.hosted_table import HostedTable
from ps_service.tables.shard import TableShard
from tests.forking.process import Forking
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import as_both
from tests.integration.restarts.test_killed import MODES, mode
from tests.integration.restarts.test_logs import checkpoints
from tests.integration.support import bits
from tests.integration.tables import moving
from tests.owner_processes import StartOwner, forked_owners

IDS = torch.tensor([5, -9, 5, 7, 8, 1 << 40, -3])

Kill = Callable[[], Awaitable[None]]


@pytest.fixture
async def owner(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, durability=mode(request)) as made:
        yield made


def hosted(owner: Owner, name: str) -> HostedTable:
    found = owner.server.engine.registry.named(name).value
    assert isinstance(found, HostedTable)
    return found


def shard_of(owner: Owner, name: str) -> TableShard:
    return hosted(owner, name).shard


async def rows_of(*tables: tc.Table) -> dict[tuple[str, int], Any]:
    """What tables have for each id, but for the ages."""
    return {(table.name, id): row for table in tables for id, row in (await moving.rows_of(table)).items()}


async def compared(
    folder: Path,
    names: Sequence[str],
    program: Callable[[tc.Client, Kill], Awaitable[Any]],
    modes: Sequence[str] = MODES[:1],
) -> None:
    """Runs a program on owners that are killed where it says so, and on others that go on; all have to return the
    same."""
    found = []
    for durability in (*modes, "off"):
        async with AsyncExitStack() as stack:
            owners = [
                await stack.enter_async_context(Owner(folder / durability / name, name, durability=durability))
                for name in names
            ]

            async def kill(owners: Sequence[Owner] = owners, durability: str = durability) -> None:
                if durability != "off":
                    await asyncio.gather(*(each.crash() for each in owners))

            ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
            found.append(await program(ps, kill))
    assert all(each == found[-1] for each in found)


OPTIMIZERS = [
    tc.tables.SGD(0.5, momentum=0.9),
    tc.tables.Adagrad(0.5),
    tc.tables.RowWiseAdagrad(0.5),
    tc.tables.LazyAdam(0.1),
    tc.tables.FTRL(0.1),
]


# What the log has as rows tells nothing of the optimizer but its state.
@pytest.mark.parametrize(
    ("steps_of_rows", "optimizers", "owners"),
    [
        *(("gradients", OPTIMIZERS[1:], 1), ("gradients", OPTIMIZERS[:1], 2)),
        *(("rows", OPTIMIZERS[:1], 2), ("rows", OPTIMIZERS[3:4], 1)),
    ],
    ids=lambda each: " ".join(one.kind for one in each) if isinstance(each, list) else each,
    indirect=["steps_of_rows"],
)
async def test_steps_of_rows_are_there_once(tmp_path: Path, optimizers: list[Any], owners: int) -> None:
    """Each optimizer has two tables of its own."""

    async def program(ps: tc.Client, kill: Kill) -> Any:
        trained = []
        for each in optimizers:
            items = await ps.table(f"items-{each.kind}", 3, each, init=tc.tables.Normal(1.0))
            fixed = await ps.table(f"fixed-{each.kind}", 2, each, rows=40, dtype=torch.bfloat16)
            trained.append((items, fixed, await ps.scheduler(lr_scheduler.StepLR, items.optimizer, 1, gamma=0.5)))
        for step in range(4):
            for (items, fixed, schedule), optimizer in zip(trained, optimizers, strict=True):
                async with ps.context() as ctx:
                    rows = await items(IDS + step)
                    bags = await fixed.bag((IDS + step).remainder(40), torch.tensor([0, 3]))
                    loss = rows.square().sum() + bags.float().square().sum()
                    if step % 2:
                        await ctx.backward(loss, step=[items.optimizer, fixed.optimizer])
                    else:
                        await ctx.backward(loss)
                        await items.step(ctx)
                        await fixed.step(ctx)
                if step % 2 == 0:
                    await schedule.step()
                    await items.optimizer.set_options(eps=1e-6) if hasattr(optimizer, "eps") else None
            if step % 2:
                await kill()
        found: list[Any] = []
        for items, fixed, _ in trained:
            found += [bits(await each.optimizer.state_dict()) for each in (items, fixed)]
            async with ps.context() as ctx:
                await ctx.backward((await items(IDS)).sum())
                found += [await items.step(ctx)]
            found += [await rows_of(items, fixed)]
        return found

    await compared(tmp_path, ["a", "b"][:owners], program)


@pytest.mark.parametrize(
    ("steps_of_rows", "names"),
    [("gradients", ["a"]), ("gradients", ["a", "b"]), ("rows", ["a", "b"])],
    indirect=["steps_of_rows"],
    ids=["gradients, one", "gradients, two", "rows, two"],
)
async def test_joint_steps_of_modules_and_tables_are_there(tmp_path: Path, names: list[str]) -> None:
    async def program(ps: tc.Client, kill: Kill) -> Any:
        tables = [await ps.table(f"table{n}", 2, tc.tables.LazyAdam(lr=0.1)) for n in range(2)]
        net = await ps.module(nn.Linear, 2, 1, name="net", seed=0)
        sparse = await ps.module(nn.Embedding, 30, 2, sparse=True, name="sparse", seed=1)
        opt = await ps.optimizer(torch.optim.SGD, [*tables, *net.parameters()], lr=0.1, momentum=0.9)
        own = await ps.optimizer(torch.optim.SparseAdam, sparse.parameters(), lr=0.1)
        for step in range(5):
            async with ps.context() as ctx:
                found = await ps.look_up(dict.fromkeys(tables, IDS + step))
                x = sum(found[each] for each in tables) + await sparse((IDS + step).remainder(30))
                loss = (await net(x)).square().sum()
                if step % 3:
                    await ctx.backward(loss, step=opt if step % 3 == 1 else [opt, own])
                else:
                    await ctx.backward(loss)
                    await opt.step(ctx)
                    await own.step(ctx)
            if step % 2:
                await kill()
        dense = bits([await each.state_dict() for each in (net, sparse, opt, own)])
        return dense, await rows_of(*tables)

    await compared(tmp_path, names, program, MODES[-1:])


async def test_rows_that_are_put_removed_and_restored_are_there(tmp_path: Path) -> None:
    numbers = itertools.count()

    async def program(ps: tc.Client, kill: Kill) -> Any:
        found: list[Any] = []
        items = await ps.table("items", 3, tc.tables.RowWiseAdagrad(0.5))
        await items.upsert(torch.arange(30), torch.randn(30, 3, generator=torch.Generator().manual_seed(1)))
        await kill()
        assert await items.remove(torch.arange(10, 20)) == 10
        await kill()
        found.append(await rows_of(items))
        path = tmp_path / f"rows{next(numbers)}"
        assert await items.export(path) == 20
        await items.clear()
        await items.upsert(torch.arange(3), torch.ones(3, 3), {"sum": torch.ones(3, 1)})
        await kill()
        found.append(await rows_of(items))
        assert await items.restore(path) == 20
        await kill()
        found.append(await rows_of(items))
        async with ps.context() as ctx:
            await ctx.backward((await items(torch.arange(5))).sum(), step=items.optimizer)
        other = await ps.table("other", 3)
        await other.upsert(torch.arange(4), torch.ones(4, 3))
        await items.delete()
        await kill()
        again = await ps.table("items", 3)
        return [*found, await rows_of(again), await rows_of(other)]

    await compared(tmp_path, ["a", "b"], program)


@as_both
async def test_admission_and_the_life_of_rows_go_on(owner: Owner, ps: tc.Client) -> None:
    evict = tc.tables.Eviction(ttl=1e5, at_capacity="least_frequent", share=0.1, spare=0.0)
    admit = tc.tables.AfterSightings(3, counters=1 << 14)
    items = await ps.table("items", 2, tc.tables.SGD(0.5), admit=admit, evict=evict, max_rows=8)

    async def look(ids: torch.Tensor) -> None:
        async with ps.context() as ctx:
            await ctx.backward((await items(ids)).sum(), step=items.optimizer)

    for step in range(12):
        await look(torch.arange(step % 4, step % 4 + 3))
        if step % 3 == 0:
            await look(torch.tensor([100 + step // 3]))
        if step % 5 == 4:
            before, written = shard_of(owner, "items"), await rows_of(items)
            seen = {name: each.flat[:8].clone() for name, each in before.population.seen.storages.items()}  # type: ignore[union-attr]
            admitted = before.admission_state()
            await owner.crash()
            after = shard_of(owner, "items")
            assert await rows_of(items) == written
            assert bits(after.admission_state()) == bits(admitted)
            again = {name: each.flat[:8].clone() for name, each in after.population.seen.storages.items()}  # type: ignore[union-attr]
            assert bits(again) == bits(seen)
            assert 0 <= after.now() - int(seen["seen"].max()) < 30_000_000
    await look(torch.arange(20, 26))
    await look(torch.arange(20, 26))
    assert await items.size() == 6
    await owner.crash()
    await look(torch.arange(20, 26))  # the third time: others make room
    assert await items.size() == 8
    gone = await items.evict(0.5)
    written = await rows_of(items)
    await owner.crash()
    assert gone.rows == 4 and await rows_of(items) == written and len(written) == 4
    hosted(owner, "items").shard.population._clock = lambda: 1e10  # type: ignore[misc]
    assert (await items.evict()).rows == 4
    await owner.crash()
    assert await items.size() == 0


@as_both
async def test_checkpoints_while_rows_come_are_continued_by_the_log(tmp_path: Path) -> None:
    options: dict[str, Any] = {"durability": "interval:0.01", "log_bytes": 1 << 20}
    async with Owner(tmp_path, **options) as owner, tc.connect(owner.address) as ps:
        items = await ps.table("items", 64, tc.tables.LazyAdam(0.1), evict=tc.tables.Eviction(ttl=1e5))
        for step in range(28):
            async with ps.context() as ctx:
                await ctx.backward((await items(torch.arange(step * 10, step * 10 + 100))).sum(), step=items.optimizer)
            if step % 16 == 7:
                await items.remove(torch.arange(step * 10))
                writing = asyncio.to_thread(owner.server.engine.checkpoints.write)
                await asyncio.gather(writing, *(ps.look_up({items: torch.arange(9)}) for _ in range(9)))
            if step % 8 == 3:
                written = await rows_of(items)
                await owner.crash()
                assert await rows_of(items) == written
        assert checkpoints(tmp_path) == 2


async def test_owners_that_were_killed_are_restored_into_others(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(Owner(tmp_path / "from" / name, name, durability="always"))
            for name in ("a", "b")
        ]
        ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
        items = await ps.table("items", 3, tc.tables.LazyAdam(0.1))
        async with ps.context() as ctx:
            await ctx.backward((await items(IDS)).square().sum(), step=items.optimizer)
        await asyncio.gather(*(each.crash() for each in owners))
        written = await rows_of(items)
        await asyncio.gather(*(each.server.drain(20) for each in owners))
    reshard(sorted((tmp_path / "from").iterdir()), tmp_path / "to", Wanted(("c", "d", "e"), {}, {}))
    async with AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(Owner(tmp_path / "to" / name, name, durability="always"))
            for name in ("c", "d", "e")
        ]
        ps = await stack.enter_async_context(tc.connect(*(each.address for each in owners)))
        items = await ps.table("items", 3, tc.tables.LazyAdam(0.1))
        assert await rows_of(items) == written
        async with ps.context() as ctx:
            await ctx.backward((await items(IDS)).square().sum(), step=items.optimizer)
        written = await rows_of(items)
        await asyncio.gather(*(each.crash() for each in owners))
        assert await rows_of(items) == written


@pytest.fixture
async def start(forking: Forking) -> AsyncIterator[StartOwner]:
    async with forked_owners(forking) as start:
        yield start


async def test_an_owner_process_with_tables_that_is_killed_goes_on(start: StartOwner, tmp_path: Path) -> None:
    flags = ("--name", "ps0", "--data-dir", str(tmp_path), "--durability", "interval:1")
    process = await start(*flags)
    stop, made = asyncio.Event(), asyncio.Semaphore(0)

    async def train(address: str, seed: int) -> int:
        done = 0
        async with tc.connect(address) as ps:
            items = await ps.table("items", 2, tc.tables.SGD(1.0), init=tc.tables.Zeros())

            async def step(ctx: tc.Context) -> None:
                await ctx.backward((await items(torch.tensor([0, seed]))).sum(), step=items.optimizer)

            while not stop.is_set():
                await ps.run(step, attempts=100)
                done += 1
                made.release()
        return done

    tasks = [asyncio.create_task(train(process.address, seed)) for seed in (1, 2)]
    for _ in range(2):
        for _ in range(8):
            await made.acquire()
        process.process.kill()
        await process.process.wait()
        process = await start(*flags, "--listen", process.address)
    stop.set()
    done = await asyncio.gather(*tasks)
    async with tc.connect(process.address) as ps:
        items = await ps.table("items", 2, tc.tables.SGD(1.0), init=tc.tables.Zeros())
        assert (await items(torch.tensor([0, 1, 2]))).tolist() == [[-float(n)] * 2 for n in (sum(done), *done)]


async def test_the_number_of_the_last_restore_is_there(owner: Owner, ps: tc.Client, tmp_path: Path) -> None:
    items = await ps.table("items", 2)
    await items.upsert(torch.arange(3), torch.ones(3, 2))
    await items.export(tmp_path / "rows")
    await items.restore(tmp_path / "rows")
    number = hosted(owner, "items").restores.latest
    await owner.crash()
    assert number > 0 and hosted(owner, "items").restores.latest == number
