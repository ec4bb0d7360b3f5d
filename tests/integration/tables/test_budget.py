"""Tests of the memory that all tables of an owner may take together."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from ps_service.tables.shard import TableShard
from ps_wire.limits import Limits

MIB = 1 << 20
LIMIT = MIB
ROW_BYTES = 64 * 4 + 29
MOST = LIMIT // ROW_BYTES
"""About as many rows of 64 as there may be."""


@asynccontextmanager
async def owner() -> AsyncIterator[tuple[Server, tc.Client]]:
    async with Server(Engine("ps0", limits=Limits(max_table_bytes=LIMIT))) as server, tc.connect(server.address) as ps:
        yield server, ps


async def fill(ps: tc.Client, table: tc.Table, begin: int, end: int) -> None:
    async with ps.context():
        await table(torch.arange(begin, end))


async def test_rows_beyond_the_budget_are_refused_and_others_go_on() -> None:
    async with owner() as (server, ps):
        one = await ps.table("one", dim=64, optimizer=tc.tables.SGD(lr=0.1))
        two = await ps.table("two", dim=64, optimizer=tc.tables.SGD(lr=0.1))
        await fill(ps, one, 0, MOST // 2)
        # All or nothing.
        with pytest.raises(
            tc.errors.TooLargeError,
            match=r"owner 'ps0' has no room for more rows of table 'two': .* 1,048,576 bytes .*raise max_table_bytes",
        ):
            await fill(ps, two, 0, MOST)
        assert await two.size() == 0
        await fill(ps, two, 0, MOST // 3)
        with pytest.raises(tc.errors.TooLargeError):
            await fill(ps, one, 0, MOST)
        # Rows that are there are read and trained.
        async with ps.context() as ctx:
            await ctx.backward((await one(torch.arange(MOST // 2))).sum(), step=one.optimizer)
        (memory,) = (each for each in (await ps.status()).memory if each.kind == "tables")
        assert memory.budget_bytes == LIMIT
        assert 0.7 * LIMIT < memory.bytes == server.engine.table_budget.nbytes < 1.1 * LIMIT


async def test_removed_rows_and_tables_make_room() -> None:
    async with owner() as (server, ps):
        one = await ps.table("one", dim=64, optimizer=tc.tables.SGD(lr=0.1))
        await fill(ps, one, 0, MOST * 9 // 10)
        await one.remove(torch.arange(MOST // 2))
        await fill(ps, one, MOST, MOST + MOST // 2)
        with pytest.raises(tc.errors.TooLargeError):
            await fill(ps, one, 0, MOST // 2)
        await one.clear()
        await fill(ps, one, 0, MOST // 2)
        await ps.delete("one")
        del one
        two = await ps.table("two", dim=64, optimizer=tc.tables.SGD(lr=0.1))
        gc.collect()
        await fill(ps, two, 0, MOST * 9 // 10)
        assert server.engine.table_budget.nbytes <= LIMIT


async def test_tables_that_evict_at_capacity_do_so_within_the_budget() -> None:
    async with owner() as (server, ps):
        items = await ps.table(
            "items",
            dim=64,
            optimizer=tc.tables.SGD(lr=0.1),
            evict=tc.tables.Eviction(at_capacity="least_recent", spare=0.0),
            max_rows=10 * MOST,
        )
        for begin in range(0, 3 * MOST, MOST // 4):
            await fill(ps, items, begin, begin + MOST // 4)
        assert server.engine.table_budget.nbytes < 1.1 * LIMIT
        # The latest are there.
        assert await items.remove(torch.arange(3 * MOST - MOST // 4, 3 * MOST)) >= MOST // 5


def test_a_shard_without_a_budget_has_none() -> None:
    shard = TableShard(64, tc.tables.SGD(lr=0.1))
    shard.look_up(torch.arange(2 * MOST))
    assert shard.memory > LIMIT


@pytest.mark.parametrize("offsets", [None, torch.arange(20_000), torch.tensor([0])], ids=["rows", "bags", "one bag"])
async def test_a_look_up_takes_no_more_memory_than_an_answer_may(offsets: torch.Tensor | None) -> None:
    async with (
        Server(Engine("ps0", limits=Limits(max_message_bytes=MIB))) as server,
        tc.connect(server.address) as ps,
    ):
        items = await ps.table("items", dim=64, optimizer=tc.tables.SGD(lr=0.1))
        shard = items.known_shards["ps0"]
        # A trainer of ours sends each id once; another one may not.
        with pytest.raises(tc.errors.TooLargeError, match=r"owner 'ps0' would take 5,120,000 bytes, and an answer has"):
            await shard.call("look_up", [(None, torch.full((20_000,), 7), offsets, None)])
        (found,) = await shard.call("look_up", [(None, torch.full((1000,), 7), None, None)])
        assert found.shape == (1000, 64)
