"""Rows that are read for those who serve them, and changes that are followed over the network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_service.tables import reading
from tests.integration.restarting import Owner
from tests.integration.tables.moving import table_of, train

IDS = torch.arange(-40, 60)


class Rows(dict[int, bytes]):
    """A table, as its changes tell it."""

    version: Any = None
    resets = 0

    def take(self, change: tc.tables.Change) -> None:
        if change.resets:
            self.clear()
            self.resets += 1
        for id in change.removed.tolist():
            self.pop(id, None)
        self |= zip(change.ids.tolist(), map(bits, change.values), strict=True)
        self.version = change.version or self.version


def bits(row: torch.Tensor) -> bytes:
    return row.contiguous().view(torch.uint8).numpy().tobytes()


async def known(table: tc.Table, rows: Rows) -> Rows:
    """The rows, with what has changed meanwhile."""
    async with aclosing(table.changes(rows.version, every=0)) as changes:
        async for change in changes:
            rows.take(change)
            if change.version is not None:
                return rows
    raise AssertionError


async def all_of(table: tc.Table) -> dict[int, bytes]:
    return {
        int(id): bits(row)
        async for block in table.blocks(state=False)
        for id, row in zip(block["ids"], block["values"], strict=True)
    }


@pytest_asyncio.fixture(params=[["ps0"], ["ps0", "ps1"]], ids=["one owner", "two owners"])
async def items(request: pytest.FixtureRequest, trio: tuple[tc.Client, tc.Client]) -> AsyncIterator[tc.Table]:
    yield await table_of(trio[0], "items", owners=request.param)


async def test_rows_are_read_as_they_are_and_nothing_is_counted(items: tc.Table, trio: tuple[tc.Client, ...]) -> None:
    ps, _ = trio
    await train(ps, items, IDS)
    ids = torch.tensor([[3, 999], [-7, 3]])
    size = await items.size()
    async with ps.context() as ctx:
        found = await items.read(ids, default=torch.arange(4.0))
        assert not found.values.requires_grad and not ctx.looked_up
    rows = await items(ids)
    assert found.found.tolist() == [[True, False], [True, True]] and found.values.dtype is torch.float32
    assert torch.equal(found.values[found.found], rows[found.found])
    assert torch.equal(found.values[0, 1], torch.arange(4.0))
    assert await items.size() == size and set(found.versions) <= set(items.owners)
    again = await items.read(ids.int())
    assert again.versions == found.versions and again.values[0, 1].tolist() == [0.0] * 4
    await train(ps, items, IDS)
    later = await items.read(ids)
    assert all(later.versions[owner] > version for owner, version in again.versions.items())
    nothing = await items.read(torch.empty(0, 3, dtype=torch.int64))
    assert nothing.values.shape == (0, 3, 4) and nothing.found.shape == (0, 3) and nothing.versions == {}


async def test_a_default_is_a_number_or_a_row(ps: tc.Client) -> None:
    items = await ps.table("items", 4)
    wrong: list[Any] = [torch.ones(3), torch.ones(4, dtype=torch.int64), "0", True, None]
    for default in wrong:
        with pytest.raises(tc.errors.InvalidArgumentError, match="the default for rows of table 'items'"):
            await items.read(IDS, default=default)


async def test_reads_follow_rows_that_move(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, _ = trio
    items, theirs = [await table_of(each, "items") for each in trio]
    await train(ps, items, IDS)
    before = await theirs.read(IDS)
    await ps.rebalance([items])
    after = await theirs.read(IDS)
    assert torch.equal(before.values, after.values) and after.found.all() and len(after.versions) == 3


@pytest.mark.parametrize("stays", [True, False], ids=["stay", "move on"])
async def test_rows_of_an_owner_that_is_asked_twice_are_of_one_moment(
    trio: tuple[tc.Client, tc.Client], monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    ps, _ = trio
    items, theirs = [await table_of(each, "items") for each in trio]
    await train(ps, items, IDS)
    await ps.drain("ps1", "ps0", [items])
    follow, now = theirs.follow, []

    async def later(owner: str) -> None:
        """Rows change between the answer of the other owner, which has them all now, and its second one."""
        if not now:
            await train(ps, items, IDS)
            await items.remove(IDS[::7])
            if not stays:
                await ps.drain("ps0", "ps2", [items])
            now.append(await items.read(IDS, default=7.0))
        await follow(owner)

    monkeypatch.setattr(theirs, "follow", later)
    found = await theirs.read(IDS, default=7.0)
    (same,) = now
    assert torch.equal(found.values, same.values) and torch.equal(found.found, same.found)
    assert found.versions == same.versions


async def test_changes_are_all_rows_first_and_then_what_has_changed(items: tc.Table, trio: tuple[Any, ...]) -> None:
    ps, other = trio
    await train(ps, items, IDS)
    rows = await known(items, Rows())
    assert rows == await all_of(items) and rows.resets == 1
    rows.version = json.loads(json.dumps(rows.version))
    theirs = await other.table("items")
    for some in IDS.split(30):
        await train(other, theirs, some)
        await theirs.remove(some[:3])
        await theirs.upsert(some[4:6] + 1000, torch.randn(2, 4))
    async with aclosing(items.changes(rows.version, every=0)) as changes:
        change = await anext(changes)
    rows.take(change)
    assert rows == await all_of(items) and rows.resets == 1
    assert len(change.ids.unique()) == len(change.ids) and not set(change.removed.tolist()) & set(change.ids.tolist())
    before = rows.version
    await theirs.clear()
    assert await known(items, rows) == {} and rows.version != before


async def test_a_change_comes_to_who_waits_for_it(items: tc.Table, trio: tuple[tc.Client, ...]) -> None:
    ps, _ = trio
    rows = Rows()
    async with asyncio.timeout(60), aclosing(items.changes(every=0.01)) as changes:
        await anext(changes)
        while (await anext(changes)).version is None:
            pass
        waiting = asyncio.ensure_future(anext(changes))
        await train(ps, items, IDS)
        while True:
            rows.take(await waiting)
            if rows == await all_of(items):
                break
            waiting = asyncio.ensure_future(anext(changes))


async def test_large_changes_come_in_pieces_while_rows_change(
    items: tc.Table, trio: tuple[tc.Client, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, _ = trio
    monkeypatch.setattr(reading, "CHANGED_BYTES", 1000)
    monkeypatch.setattr(reading, "PIECE_BYTES", 1000)
    await train(ps, items, IDS)
    rows = await known(items, Rows())
    await train(ps, items, IDS)
    pieces = 0
    async with aclosing(items.changes(rows.version, every=0)) as changes:
        async for change in changes:
            rows.take(change)
            pieces += 1
            if change.version is not None:
                break
            if pieces == 2:
                await train(ps, items, IDS[:2])
    assert pieces > 3 and rows == await all_of(items) and rows.resets == 1


async def test_rows_that_move_come_again(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, _ = trio
    items = await table_of(ps, "items")
    await train(ps, items, IDS)
    rows = await known(items, Rows())
    await ps.rebalance([items])
    await train(ps, items, IDS)
    await items.remove(IDS[:9])
    assert await known(items, rows) == await all_of(items) and rows.resets == 2
    await train(ps, items, IDS)
    assert await known(items, rows) == await all_of(items) and rows.resets == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("codec", [tc.codecs.BF16(), tc.codecs.Int8(), tc.codecs.Zstd()], ids=repr)
async def test_values_are_rounded_on_the_way(ps: tc.Client, dtype: torch.dtype, codec: tc.codecs.Codec) -> None:
    items = await ps.table("items", 64, init=tc.tables.Normal(1.0), dtype=dtype)
    await items.upsert(IDS, torch.randn(len(IDS), 64))
    async with aclosing(items.changes(every=0, compress=codec)) as changes:
        change = await anext(changes)
        whole = await anext(changes)
    exact = (await items.read(change.ids)).values
    assert change.values.dtype is dtype and len(change.ids) == len(IDS) and whole.version is not None
    torch.testing.assert_close(change.values, exact, atol=0.05, rtol=0.05)
    if not isinstance(codec, tc.codecs.Zstd) and dtype is torch.float32:
        assert not torch.equal(change.values, exact)


async def test_the_version_holds_over_a_drain_and_not_over_a_kill(tmp_path: Path) -> None:
    async with Owner(tmp_path) as owner:
        async with tc.connect(owner.address) as ps:
            items = await ps.table("items", 4)
            await train(ps, items, IDS)
            rows = await known(items, Rows())
            await train(ps, items, IDS[:10])
            await owner.restart()
            assert await known(items, rows) == await all_of(items) and rows.resets == 1
            await train(ps, items, IDS[:10])
            await known(items, rows)
            await owner.crash()
            with pytest.raises(tc.errors.SessionLostError):
                await known(items, rows)
        async with tc.connect(owner.address) as ps:
            items = await ps.table("items")
            assert await known(items, rows) == await all_of(items) and rows.resets == 2, "the last step was lost"


@pytest.mark.parametrize(
    "arguments", [{"since": 3}, {"since": {"ps0": 1}}, {"every": -1}, {"compress": tc.codecs.TopK(0.1)}]
)
async def test_arguments_of_changes_are_checked(ps: tc.Client, arguments: dict[str, Any]) -> None:
    items = await ps.table("items", 4)
    with pytest.raises(tc.errors.InvalidArgumentError):
        items.changes(**arguments)


def test_a_plain_thread_follows_with_for(owner_beside: str) -> None:
    with tc.connect(owner_beside) as ps:
        items = ps.table("followed", 4)
        items.upsert(IDS, torch.randn(len(IDS), 4))
        assert ps.table("followed").read(IDS).found.all()
        rows = Rows()
        for change in items.changes(every=0.01):
            rows.take(change)
            if change.version is not None:
                break
        assert rows.keys() == set(IDS.tolist())
        items.delete()


async def test_what_is_no_version_is_refused_by_owners(owner: Server, ps: tc.Client) -> None:
    items = await ps.table("items", 4)
    call = items.follower.call
    asked: list[tuple[Any, ...]] = [
        *(("read_changes", since, 0) for since in ([1, 2, 3], (1, "2"), 7)),
        *(("read_changes", None, begin) for begin in (True, "1", None, -1, 1 << 63)),
        *(("read_changes_together", since, 0) for since in (None, [1, 2, 3], 7)),
        *(("read_changes_together", (1, 2), begin) for begin in ("1", -1)),
        *(("read_changes_together", (1, 2), 0, reader) for reader in ("1", True, [], 1.0)),
        *(("end_reading", reader) for reader in (None, "1", [])),
        *(
            ("read_block", 0, False, 0, codec)
            for codec in (("bf16", 3), ("bf17", {}), ("topk", {"ratio": 0.1}), "bf16", ({}, {}))
        ),
        *(("read", ids) for ids in (3, torch.ones(2), torch.ones(2, 2, dtype=torch.int64))),
    ]
    for method, *arguments in asked:
        with pytest.raises(tc.errors.PsError):
            await call("ps0", method, *arguments)
