"""Who reads all rows of a table for the first time gets to their end, also if that takes long and many rows go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_service.tables import feed, reading
from tests.conftest import StartOwner
from tests.integration.tables.moving import table_of
from tests.integration.tables.test_reading import Rows, all_of
from trainer_client.tables import changes

MANY = torch.arange(1000)
PIECES = 20
"""So many of the first pieces are slow, or have changes beside them."""


@pytest.fixture
async def owners(start_owner: StartOwner, monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    monkeypatch.setattr(reading, "CHANGED_BYTES", 1000)
    monkeypatch.setattr(reading, "PIECE_BYTES", 500)
    return [await start_owner(name) for name in ("ps0", "ps1")]


@pytest.fixture
async def tables(owners: list[Server]) -> AsyncIterator[list[tc.Table]]:
    """Two handles of one table."""
    addresses = [each.address for each in owners]
    async with tc.connect(*addresses) as ps, tc.connect(*addresses) as other:
        items = await table_of(ps, "items")
        await items.upsert(MANY, torch.randn(1000, 4))
        yield [items, await other.table("items")]


def feeds(owners: list[Server]) -> list[Any]:
    return [
        hosted.value.shard.feed
        for each in owners
        for hosted in each.engine.registry.objects()
        if hosted.is_table and hosted.value.shard.size
    ]


async def read_beside(tables: list[tc.Table], act: Callable[[int], Awaitable[object]]) -> Rows:
    """All rows up to the first version; `act` is called with the number of each of the first pieces."""
    items, theirs = tables
    rows, taken = Rows(), 0
    async with asyncio.timeout(100), aclosing(items.changes(every=0)) as following:
        async for change in following:
            rows.take(change)
            if change.version is not None:
                assert rows == await all_of(theirs)
                return rows
            taken += 1
            if taken <= PIECES:
                await act(taken)
    raise AssertionError


async def test_owners_note_what_changes_while_all_rows_are_read_slowly(
    owners: list[Server], tables: list[tc.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "NOTED_SECONDS", 0.0)
    now = 0.0
    for each in feeds(owners):
        each._clock = lambda: now

    async def wait(number: int) -> None:
        nonlocal now
        now += 0.7 * feed.ABANDONED_SECONDS
        await tables[1].upsert(MANY[::7], torch.randn(len(MANY[::7]), 4))

    assert (await read_beside(tables, wait)).resets == 1


async def test_rows_that_go_while_all_are_read_are_told(
    owners: list[Server], tables: list[tc.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_IDS", 100)
    monkeypatch.setattr(feed, "ENTRY_IDS", 0)

    async def remove(number: int) -> None:
        await tables[1].remove(MANY[number::23])

    assert (await read_beside(tables, remove)).resets == 1
