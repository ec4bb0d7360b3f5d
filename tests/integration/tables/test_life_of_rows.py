"""Tests of how ids get rows, and how rows go, while trainers use a table."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.cli import probe
from ps_service.server import Server
from ps_service.tables.shard import TableShard
from ps_wire.v1.operations_pb2 import CheckpointRequest
from tests.conftest import StartOwner
from tests.integration.restarting import Owner
from tests.waiting import until

ONE, TWO, THREE = (torch.tensor([each]) for each in (1, 2, 3))


class Clock:
    """A time that tests set."""

    now = 1e9

    def __call__(self) -> float:
        return self.now


def shard_of(server: Server, name: str, clock: Clock | None = None) -> TableShard:
    """The rows of a table on an owner, from now on with this clock; then rows do not expire by themselves."""
    table = server.engine.registry.named(name).value
    shard: TableShard = table.shard
    if clock is not None:
        table.ttl = None
        shard.population._clock = clock  # type: ignore[misc]
    return shard


async def train(ps: tc.Client, items: tc.Table, ids: torch.Tensor) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await items(ids)).sum(), step=items.optimizer)


async def elsewhere(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs what another trainer does while a context of this one is open."""
    return await asyncio.create_task(work, context=contextvars.Context())


async def test_ids_that_are_not_admitted_read_a_row_that_nobody_trains(pair: tc.Client) -> None:
    admit = tc.tables.AfterSightings(3, default=2.0)
    items = await pair.table("items", 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), admit=admit)
    ids = torch.arange(20)
    for _ in range(2):
        await train(pair, items, ids)
    assert (await items(ids)).unique().tolist() == [2.0] and await items.size() == 0
    await train(pair, items, ids[:10])
    assert (await items(ids))[:, 0].tolist() == [-1.0] * 10 + [2.0] * 10
    bag = await items.bag(ids, torch.tensor([0, 10]))
    assert bag.tolist() == [[-10.0] * 2, [20.0] * 2]
    assert (await pair.table("items", 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), admit=admit)).name == "items"
    with pytest.raises(tc.errors.NameConflictError, match="admit="):
        await pair.table("items", 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros())


async def test_gradients_that_will_be_dropped_are_neither_clipped_with_nor_checked(ps: tc.Client) -> None:
    items = await ps.table("items", 1, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), admit=tc.tables.AfterSightings(2))
    await train(ps, items, ONE)
    await train(ps, items, ONE)
    async with ps.context() as ctx:
        known, unknown = await asyncio.gather(items(ONE), items.bag(TWO, torch.tensor([0])))
        await ctx.backward(known.sum() * 3 + unknown.sum() * float("nan"))
        assert float(await ctx.clip_grad_norm(items.parameters(), 1.0)) == pytest.approx(3.0)
        await items.step(ctx)
    assert (await items(ONE)).item() == pytest.approx(-2.0)


async def test_rows_get_their_ids_with_a_probability(ps: tc.Client) -> None:
    items = await ps.table("items", 1, admit=tc.tables.WithProbability(0.5))
    async with ps.context():
        await items(torch.arange(2000))
    assert await items.size() == pytest.approx(1000, rel=0.15)


async def test_a_gradient_of_a_row_that_went_does_not_reach_its_successor(owner: Server, ps: tc.Client) -> None:
    items = await ps.table("items", 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), evict=tc.tables.Eviction(ttl=100))
    clock = Clock()
    shard = shard_of(owner, "items", clock)
    async with tc.connect(owner.address) as other:
        theirs = await other.table("items")
        async with ps.context() as ctx:
            rows = await items(torch.tensor([1, 2]))
            clock.now += 99
            await elsewhere(train(other, theirs, TWO))
            clock.now += 1
            assert shard.expire(0, 100)[0].tolist() == [1]
            await elsewhere(train(other, theirs, THREE))  # gets the number that the row of 1 had
            clock.now += 1
            await elsewhere(train(other, theirs, ONE))
            await ctx.backward(rows.sum() * 10)
            stepped = await items.step(ctx)
    assert stepped == {owner.engine.name: 4}
    assert (await items(torch.tensor([1, 2, 3])))[:, 0].tolist() == [-1.0, -11.0, -1.0]
    assert shard.statistics.late == 1


@pytest.mark.parametrize("policy", [tc.policies.Sync(2), tc.policies.Quorum(2)], ids=str)
async def test_rounds_leave_out_rows_that_went_meanwhile(
    owner: Server, ps: tc.Client, policy: tc.policies.Policy
) -> None:
    evict = tc.tables.Eviction(ttl=100)
    items = await ps.table("items", 1, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), evict=evict, policy=policy)
    clock = Clock()
    shard = shard_of(owner, "items", clock)
    async with tc.connect(owner.address) as other:
        theirs = await other.table("items", policy=policy)

        async def join() -> None:
            async with other.context() as ctx:
                await ctx.backward((await theirs(torch.tensor([3, 1]))).sum() * 3, step=theirs.optimizer)

        async with ps.context() as ctx:
            await ctx.backward((await items(torch.tensor([1, 2]))).sum())
            offered = asyncio.ensure_future(items.step(ctx))
            aggregator = owner.engine.registry.named("items.optimizer").value.aggregator
            await until(lambda: aggregator._offered or aggregator._pool.total is not None)
            clock.now += 50
            shard.look_up(TWO)
            clock.now += 50
            assert shard.expire(0, 100)[0].tolist() == [1]
            await asyncio.gather(offered, elsewhere(join()))
    # The gradients of two trainers are divided by 2. Of those for 1, only that of its new row counts.
    assert (await items(torch.tensor([1, 2, 3])))[:, 0].tolist() == [-1.5, -0.5, -1.5]


async def test_expired_rows_go_by_themselves(start_owner: StartOwner) -> None:
    owners = [await start_owner(name) for name in ("ps0", "ps1")]
    async with tc.connect(*(each.address for each in owners)) as ps:
        items = await ps.table("items", 2, evict=tc.tables.Eviction(ttl=0.05, spare=0.0))
        lasting = await ps.table("lasting", 2, evict=tc.tables.Eviction(ttl=1e6, spare=0.0))
        async with ps.context():
            await asyncio.gather(items(torch.arange(50)), lasting(torch.arange(50)))
        await until(lambda: not any(shard_of(each, "items").size for each in owners), 0.01)
        assert await lasting.size() == 50


@pytest.mark.parametrize("by", ["least_recent", "least_frequent", "smallest_norm"])
async def test_a_full_table_makes_room(owner: Server, ps: tc.Client, by: Any) -> None:
    evict = tc.tables.Eviction(at_capacity=by, share=0.0, spare=10)
    items = await ps.table("items", 1, init=tc.tables.Normal(1.0), max_rows=3, evict=evict, dtype=torch.float16)
    clock = Clock()
    shard = shard_of(owner, "items", clock)
    for each in (1, 1, 2, 3, 3):
        async with ps.context():
            await items(torch.tensor([each]))
        clock.now += 1
    before = await items(torch.arange(5))
    async with ps.context():
        with pytest.raises(tc.errors.TooLargeError, match="at most 3 are"):
            await items(torch.tensor([4, 1]))
    assert torch.equal(await items(torch.arange(5)), before) and await items.size() == 3
    clock.now += 10
    async with ps.context():
        await items(torch.tensor([4, 1]))
    smallest = 2 + int(before[2].abs() > before[3].abs())
    gone = {"least_recent": 2, "least_frequent": 2, "smallest_norm": smallest}[by]
    assert sorted(shard._map.items()[0].tolist()) == sorted({1, 2, 3, 4} - {gone})


@pytest.mark.parametrize("live", [False, True], ids=["at the end", "while it runs"])
async def test_a_checkpoint_remembers_sightings_ages_and_frequencies(tmp_path: Path, live: bool) -> None:
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(Owner(tmp_path, "ps0"))
        ps = await stack.enter_async_context(tc.connect(owner.address))
        evict = tc.tables.Eviction(ttl=1e6, at_capacity="least_frequent", spare=0)
        items = await ps.table("items", 1, init=tc.tables.Normal(1.0), admit=tc.tables.AfterSightings(3), evict=evict)
        clock = Clock()
        shard = shard_of(owner.server, "items", clock)
        for ids, times in (([1, 2], 5), ([2], 3), ([9], 2)):
            for _ in range(times):
                async with ps.context():
                    await items(torch.tensor(ids))
            clock.now += 30
        async with ps.context():
            for _ in range(3):
                await items(THREE)
        shard.remove(TWO)
        async with ps.context():
            await items(TWO)  # was seen often enough before, and the filter still knows
        assert sorted(shard._map.items()[0].tolist()) == [1, 2, 3]
        before = await items(torch.arange(5))
        if live:
            await asyncio.to_thread(probe.ask, owner.address, CheckpointRequest(), 60.0)
            await owner.crash()
            ps = await stack.enter_async_context(tc.connect(owner.address))
        else:
            await owner.restart()
        items = await ps.table("items")
        # Time goes on where it stopped: rows do not grow older while the owner is away.
        clock.now = 5e8
        again = shard_of(owner.server, "items")
        assert again is not shard
        ages = again.copies(0, 10)[0]
        known = dict(zip(ages["ids"].tolist(), ages["age"].tolist(), strict=True))
        assert known[1] == pytest.approx(90e6, rel=0.2) and known[3] < 20e6
        assert dict(zip(ages["ids"].tolist(), ages["sightings"].tolist(), strict=True)) == {1: 3, 2: 1, 3: 1}
        assert again.evict(1, dry_run=True).tolist() in ([2], [3])
        assert torch.equal(await items(torch.arange(5)), before)
        async with ps.context():
            await items(torch.tensor([9]))  # the third sighting
        assert await items.size() == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": 10, "admit": tc.tables.AfterSightings(2)},
        {"rows": 10, "evict": tc.tables.Eviction(ttl=5)},
        {"admit": 3},
        {"admit": tc.tables.Eviction(ttl=5)},
        {"evict": 60.0},
        {"evict": "least_recent"},
        {"evict": tc.tables.AfterSightings(2)},
    ],
    ids=str,
)
async def test_a_life_that_cannot_be(pair: tc.Client, settings: dict[str, Any]) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError):
        await pair.table("other", **{"dim": 2} | settings)
    assert [list((await pair.status(owner)).tables) for owner in ("ps0", "ps1")] == [[], []]


@pytest.mark.parametrize(
    "changed",
    [
        {"admit": {"kind": "after_sightings", "sightings": 2, "counters": 1 << 40}},
        {"admit": {"kind": "sgd"}},
        {"admit": {"kind": "with_probability", "probability": "1"}},
        {"evict": {"kind": "eviction", "ttl": float("nan")}},
        {"evict": {"kind": "eviction", "at_capacity": ["least_recent"]}},
        {"evict": {"kind": "eviction", "more": 1}},
        {"evict": 5},
        {"rows": 5, "evict": {"kind": "eviction", "ttl": 1.0}},
    ],
    ids=str,
)
async def test_owners_check_the_life_that_other_clients_ask_for(ps: tc.Client, changed: dict[str, Any]) -> None:
    wanted = {"name": "items", "dim": 2, "rows": None, "dtype": torch.float32, "init": {"kind": "zeros"}}
    wanted |= {"optimizer": {"kind": "sgd"}, "seed": 0, "max_rows": None, "groups": [], "owners": ["ps0"]}
    with pytest.raises(tc.errors.InvalidArgumentError):
        await ps._tables.create(ps._tables.sessions.of(""), "items", wanted | changed, False)
    assert not (await ps.status()).tables


async def test_status_says_what_became_of_ids_and_rows(ps: tc.Client) -> None:
    evict = tc.tables.Eviction(at_capacity="least_recent", spare=0.0)
    items = await ps.table("items", 2, tc.tables.SGD(lr=1.0), admit=tc.tables.AfterSightings(2), evict=evict)
    ids = torch.arange(10)
    await train(ps, items, ids)  # all are refused
    await train(ps, items, ids[:6])  # six get their row
    async with ps.context() as ctx:
        # In two bags there is each of them twice: twelve hits, twelve ids with gradients, and six rows to update.
        pooled = await items.bag(ids[:6].repeat(2), torch.tensor([0, 6]))
        await ctx.backward(pooled.sum(), step=items.optimizer)
    await items(ids)  # four are missing
    await items.upsert(ids[8:], torch.ones(2, 2))
    assert await items.remove(ids[:1]) == 1 and (await items.evict(0.5)).rows == 3
    (told,) = (await ps.status()).tables
    assert (told.looked_up, told.added, told.refused, told.missing) == (10 + 6 + 12 + 10, 6, 10, 4)
    assert (told.loaded, told.removed, told.evicted, told.expired) == (2, 1, 3, 0)
    assert (told.gradients, told.updated, told.late) == (10 + 6 + 12, 6 + 6, 0)
