"""Tests of checkpoints that are restored into another number of owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.durability.manifest import NAME, Manifest
from ps_service.durability.resharding.placement import Wanted
from ps_service.durability.resharding.reshard import Result, reshard
from ps_service.durability.store import CheckpointError
from ps_wire.tables.routing import Routing, slots_of
from tests.hosted_models import Affine
from tests.integration.restarting import Owner
from tests.integration.tables.test_reading import Rows, all_of, known

IDS = torch.tensor([5, -9, 5, 7, 8, 1 << 40, -3])
EVERYTHING = torch.cat([torch.arange(-20, 40), torch.tensor([1 << 40])])


@asynccontextmanager
async def running(folder: Path, names: Sequence[str]) -> AsyncIterator[tuple[tc.Client, list[Owner]]]:
    """Owners with data directories of their names in a folder, and a trainer of them."""
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(Owner(folder / name, name)) for name in names]
        yield await stack.enter_async_context(tc.connect(*(each.address for each in owners))), owners
        await asyncio.gather(*(each.server.drain(20) for each in owners))


async def restored(given: Path, to: Path, owners: Sequence[str] | int, **more: Any) -> Result:
    """Restores all owners whose directories are in a folder."""
    wanted = Wanted(owners if isinstance(owners, int) else tuple(owners), more.pop("homes", {}), more.pop("tables", {}))
    return await asyncio.to_thread(lambda: reshard(sorted(given.iterdir()), to, wanted, **more))


async def tables(ps: tc.Client, **more: Any) -> tuple[tc.Table, tc.Table, Any]:
    """A table that grows, a table of fixed size in 16 bits, and a schedule of the first."""
    items = await ps.table("items", 3, tc.tables.LazyAdam(lr=0.1), init=tc.tables.Normal(1.0), **more)
    fixed = await ps.table("fixed", 2, tc.tables.RowWiseAdagrad(lr=0.5), rows=40, dtype=torch.bfloat16, **more)
    schedule = await ps.scheduler(lr_scheduler.StepLR, items.optimizer, step_size=2, gamma=0.5)
    return items, fixed, schedule


async def train(ps: tc.Client, steps: Sequence[int], **more: Any) -> list[torch.Tensor]:
    """Some steps; returns all rows afterwards."""
    items, fixed, schedule = await tables(ps, **more)
    for step in steps:
        async with ps.context() as ctx:
            rows, again = await items(IDS + step), await fixed((IDS + step).remainder(40))
            await ctx.backward(rows.square().sum() + again.float().square().sum())
            await items.step(ctx)
            await fixed.step(ctx)
        await schedule.step()
    return [await items(EVERYTHING), await fixed(torch.arange(40))]


async def alone(tmp_path: Path, steps: Sequence[int]) -> list[torch.Tensor]:
    """The rows after these steps, on one owner that was never stopped."""
    async with running(tmp_path / "alone", ["ps0"]) as (ps, _):
        return await train(ps, steps)


NAMES = ["ps0", "ps1", "ps2"]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
async def test_training_goes_on_with_the_same_bits(tmp_path: Path, before: int, after: int) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with running(old, NAMES[:before]) as (ps, owners):
        seen = await train(ps, range(3))
        kept = contents(owners)
    result = await restored(old, new, after)
    assert [each.name for each in sorted(new.iterdir())] == list(result.placement.owners) == NAMES[:after]
    async with running(new, NAMES[:after]) as (ps, owners):
        assert same_contents(contents(owners), kept)
        assert {name: dict(each) for name, each in result.rows.items()} == rows_of(owners)
        assert all(map(torch.equal, await train(ps, []), seen))
        found = await train(ps, range(3, 6))
    expected = await alone(tmp_path, range(6))
    assert all(map(torch.equal, found, expected))


def contents(owners: Sequence[Owner], table: str = "items") -> dict[str, torch.Tensor]:
    """All columns of a table by the ids of its rows, in ascending order, over its owners."""
    shards = [each.server.engine.registry.named(table).value.shard for each in owners]
    blocks = [block for shard in shards for block in shard.blocks(7)]
    joined = {name: torch.cat([each[name] for each in blocks]) for name in blocks[0]}
    order = joined["ids"].argsort()
    return {name: each[order] for name, each in joined.items()}


def same_contents(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rows_of(owners: Sequence[Owner]) -> dict[str, dict[str, int]]:
    """Rows by table and owner; each row is where the routing says."""
    found: dict[str, dict[str, int]] = {"items": {}, "fixed": {}}
    for owner in owners:
        for name in found:
            table = owner.server.engine.registry.named(name).value
            routing: Routing = table.routing
            assert routing.owners == tuple(each.name for each in owners)
            ids = torch.cat([torch.empty(0, dtype=torch.int64), *(each["ids"] for each in table.shard.blocks())])
            assert set(routing.of_slot[slots_of(ids)].tolist()) <= {routing.owners.index(owner.name)}
            found[name][owner.name] = len(ids)
    return found


async def test_what_admission_and_eviction_keep_goes_with_the_rows(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    eviction = tc.tables.Eviction(at_capacity="least_frequent")
    more = {"admit": tc.tables.AfterSightings(2, counters=1 << 16), "evict": eviction}
    ids = torch.arange(200)
    async with running(old, NAMES[:2]) as (ps, owners):
        items = await ps.table("items", 2, **more)  # type: ignore[arg-type]
        for some in (ids, ids[:100], ids[:50], ids[150:]):
            async with ps.context():
                await items(some)
        for each in owners:
            each.server.engine.registry.named("items").value.shard.remove(torch.arange(10))
        kept = contents(owners)
        assert len(kept["ids"]) == 140 and len(kept["sightings"].unique()) > 1
    await restored(old, new, 3)
    async with running(new, NAMES) as (ps, owners):
        found = contents(owners)
        # Time goes on.
        assert bool((found.pop("age") >= kept.pop("age")).all())
        assert same_contents(found, kept)
        items = await ps.table("items", 2, **more)  # type: ignore[arg-type]
        async with ps.context():
            # These were seen once on the owners before.
            await items(ids[100:150])
        assert await items.size() >= 190


@pytest.mark.parametrize(
    ("before", "after", "policy"),
    [(1, 3, tc.policies.Sync(1)), (3, 2, tc.policies.Async(tc.policies.Scale()))],
    ids=str,
)
async def test_policies_begin_their_rounds_anew(
    tmp_path: Path, before: int, after: int, policy: tc.policies.Policy
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with running(old, NAMES[:before]) as (ps, _):
        items = await ps.table("items", 1, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros())
        await items.optimizer.set_policy(policy)
        await add(ps, items)
    await restored(old, new, after)
    async with running(new, NAMES[:after]) as (ps, _):
        items = await ps.table("items", 1, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), policy=policy)
        for number in (2, 3):
            assert (await add(ps, items)).counted == 1
            assert (await items(IDS)).flatten().tolist() == [-2.0 * number, -number] * 1 + [-2.0 * number] + [
                -number
            ] * 4


async def add(ps: tc.Client, items: tc.Table) -> tc.Stepped:
    async with ps.context() as ctx:
        return await ctx.backward((await items(IDS)).sum(), step=items.optimizer)


async def test_other_objects_stay_with_their_owner_or_get_another_home(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with running(old, NAMES) as (ps, _):
        nets = [
            await ps.module(Affine, 2, 3, name=f"net{number}", owner=f"ps{number}", seed=number) for number in (0, 2)
        ]
        for net in nets:
            opt = await ps.optimizer(torch.optim.Adam, net.parameters(), lr=0.1)
            async with ps.context() as ctx:
                await ctx.backward((await net(torch.ones(1, 2))).sum(), step=opt)
        anonymous = await ps.module(Affine, 2, 3, owner="ps1")
        states = [await net.state_dict() for net in nets]
        await train(ps, [0])
        assert repr(anonymous)
    with pytest.raises(CheckpointError, match=r"'ps2' goes, and has net2, net2\.optimizer: .* --objects ps2=NAME"):
        await restored(old, new, 2)
    assert not new.exists()
    result = await restored(old, new, 2, homes={"ps2": "ps0"})
    names = ["net0", "net0.optimizer", "net2", "net2.optimizer"]
    assert (result.objects, result.left_out) == ({"ps0": names, "ps1": []}, 1)
    async with running(new, NAMES[:2]) as (ps, owners):
        for net, state in zip(("net0", "net2"), states, strict=True):
            found = await ps.attach(net, owner="ps0")
            assert isinstance(found, tc.RemoteModule)
            assert all(torch.equal(value, state[name]) for name, value in (await found.state_dict()).items())
            opt = await ps.optimizer(torch.optim.Adam, found.parameters(), lr=0.1)
            async with ps.context() as ctx:
                loss = (await found(torch.ones(1, 2))).sum()
                assert await ctx.backward(loss, step=opt) == {"ps0": 2}
        assert len(owners[1].server.engine.registry) == 5, "two tables, two optimizers and a schedule"


async def test_tables_of_some_owners_stay_with_these_or_go_where_they_are_told(tmp_path: Path) -> None:
    old = tmp_path / "old"
    async with running(old, NAMES[:2]) as (ps, _):
        for name in ("stays", "moves"):
            table = await ps.table(name, 2, owners=["ps1"])
            async with ps.context():
                await table(torch.arange(100))
    first = await restored(old, tmp_path / "a", 3, tables={"moves": ("ps0", "ps2")})
    assert {name: set(each) for name, each in first.rows.items()} == {"stays": {"ps1"}, "moves": {"ps0", "ps2"}}
    async with running(tmp_path / "a", NAMES) as (ps, _):
        stays, moves = await ps.table("stays", 2, owners=["ps1"]), await ps.table("moves")
        assert (stays.owners, moves.owners) == (["ps1"], ["ps0", "ps2"])
        assert [await stays.size(), await moves.size()] == [100, 100]
    assert set((await restored(old, tmp_path / "b", ["x", "y"])).rows["stays"]) == {"x", "y"}


@pytest.mark.parametrize(("before", "after", "everywhere"), [(1, 2, True), (2, 1, False), (2, 2, True), (2, 2, False)])
async def test_who_follows_a_table_reads_all_of_its_rows_anew(
    tmp_path: Path, before: int, after: int, everywhere: bool
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with running(old, NAMES[:before]) as (ps, _):
        items, *_ = await tables(ps)
        await train(ps, [0])
        if everywhere:
            rows = await known(items, Rows())
        else:
            await items.follower.call("ps0", "read_changes", None, 0, 0, None)
            rows = Rows()
        await train(ps, [1])
    await restored(old, new, after)
    async with running(new, NAMES[:after]) as (ps, _):
        items, *_ = await tables(ps)
        resets = rows.resets
        assert await known(items, rows) == await all_of(items) and rows.resets == resets + 1
        await train(ps, [2])
        assert await known(items, rows) == await all_of(items) and rows.resets == resets + 1


async def test_a_trainer_of_before_is_told_that_its_session_is_lost(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(Owner(old / "ps0"))
        ps = await stack.enter_async_context(tc.connect(owner.address))
        items = await ps.table("items", 2)
        async with ps.context():
            await items(IDS)
        await owner.server.drain(20)
        await restored(old, new, 2)
        owner.folder = new / "ps0"
        await owner.start()
        with pytest.raises((tc.errors.SessionLostError, tc.errors.StaleHandleError)):
            await items(IDS)
        with pytest.raises(tc.errors.StaleHandleError):
            await items(IDS)


@pytest.fixture
async def stopped(tmp_path: Path) -> Path:
    """A folder with the directories of two owners, which were stopped together."""
    async with running(tmp_path / "old", NAMES[:2]) as (ps, _):
        await train(ps, [0])
    return tmp_path / "old"


def checkpoint_in(folder: Path) -> Path:
    (found,) = folder.glob("checkpoint-*")
    return found


async def test_what_is_missing_or_damaged_is_named_and_nothing_is_written(stopped: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"

    async def refused(paths: Sequence[Path], message: str, wanted: Wanted | None = None, **more: Any) -> None:
        with pytest.raises(CheckpointError, match=message):
            await asyncio.to_thread(reshard, paths, new, wanted or Wanted(2, {}, {}), **more)
        assert not new.exists() or not any(new.iterdir())

    both = [stopped / "ps0", stopped / "ps1"]
    await refused([], "at least one")
    await refused(both[:1], "'fixed' has rows on ps1, too")
    await refused([both[0], tmp_path / "nowhere"], "no directory .*nowhere")
    await refused([both[0], tmp_path], "has no checkpoint")
    await refused([both[0], both[0]], "both of owner 'ps0'|another owner uses")
    await refused([both[0], checkpoint_in(both[0])], "both of owner 'ps0'")
    for wanted, message in [
        (Wanted(0, {}, {}), "at least one owner"),
        (Wanted(("a", "a"), {}, {}), "different names"),
        (Wanted(2, {"ps7": "ps0"}, {}), "--objects names ps7; there are ps0, ps1"),
        (Wanted(2, {"ps0": "ps7"}, {}), "--objects names ps7; the new owners are ps0, ps1"),
        (Wanted(2, {}, {"users": ("ps0",)}), "--table names users; there are fixed, items"),
        (Wanted(2, {}, {"items": ("ps9",)}), "--table names ps9"),
    ]:
        await refused(both, message, wanted)
    async with Owner(stopped / "ps1", "ps1"):
        await refused(both, "another owner uses")
    folder = checkpoint_in(both[0])
    manifest = Manifest.read(folder)
    hour = replace(manifest, written="2001-01-01T00:00:00+00:00")
    (folder / NAME).write_bytes(hour.to_bytes())
    await refused(both, "of different moments: that of 'ps0' was written at 2001-01-01 00:00:00")
    assert (await restored(stopped, new, 2, apart=1e12, dry_run=True)).folders == {}
    (folder / NAME).write_bytes(manifest.to_bytes())
    part = next(folder.glob("tensors-*"))
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    await refused(both, "is damaged or missing: restore that directory from a backup")
    part.write_bytes(whole)
    (new / "ps1").mkdir(parents=True)
    (new / "ps1" / "file").touch()
    with pytest.raises(CheckpointError, match="ps1 is not empty"):
        await restored(stopped, new, 2)
    assert [each.name for each in new.iterdir()] == ["ps1"]


async def test_an_owner_that_missed_the_last_stop_is_noticed(tmp_path: Path) -> None:
    async with running(tmp_path / "old", NAMES[:2]) as (ps, owners):
        await tables(ps)
        await owners[1].restart()
        await ps.table("later", 2)
        await owners[1].crash()
    with pytest.raises(CheckpointError, match=r"different moments: .*does not have the table 'later'"):
        await restored(tmp_path / "old", tmp_path / "new", 1)


async def test_more_rows_than_an_owner_may_have_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    async with running(tmp_path / "old", NAMES[:2]) as (ps, _):
        items = await ps.table("items", 2, max_rows=60)
        async with ps.context():
            await items(torch.arange(100))
    with pytest.raises(CheckpointError, match=r"may have 60 rows on an owner .* would have 100 on ps0"):
        await restored(tmp_path / "old", tmp_path / "new", 1)
    assert not (tmp_path / "new").exists()
