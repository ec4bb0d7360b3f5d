"""Tests of moves of rows that are held up, given up, or meet passes and readers."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.tables import slot_changes
from ps_service.tables.hosted_table import HostedTable
from tests.conftest import StartOwner
from tests.integration.support import bits
from tests.integration.tables.moving import NAMES, drawn, rows_of, table_of, train
from trainer_client.tables.moves import Move


async def test_an_open_pass_holds_a_move_up_and_nothing_else(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    items, its = await table_of(ps, "items"), await table_of(other, "items")
    async with ps.context() as ctx:
        rows = await items(drawn(1))
        with pytest.raises(tc.errors.DeadlineExceededError, match="no moment without a pass that uses rows of"):
            await other.drain("ps0", tables=[its], pause=0.1, patience=0.3)
        assert its.owners == ["ps0", "ps1"]

        async def run() -> None:
            for step in range(5):
                await train(other, its, drawn(step))

        async def move() -> None:
            await other.drain("ps0", tables=[its], pause=0.1)

        # Other passes wait for no longer than the pause, again and again.
        loop = asyncio.get_running_loop()
        moving, running = (loop.create_task(each(), context=Context()) for each in (move, run))
        await running
        assert not moving.done()
        await ctx.backward(rows.sum(), step=items.optimizer)
    await moving
    assert its.owners == ["ps1", "ps2"]


async def test_a_table_opens_again_if_nobody_goes_on_with_a_move(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, _ = trio
    items = await table_of(ps, "items")
    await train(ps, items, drawn(1))
    slots = items.routing.slots("ps0")
    before = await rows_of(items)
    await items.follower.call("ps0", "begin_move", "a move", slots, "ps2")
    await items.follower.call("ps0", "close", "a move", 0.1)
    assert bits(await items(drawn(1)))
    await items.follower.call("ps0", "close", "a move", 0.1)
    await train(ps, items, drawn(1))
    assert await items.follower.call("ps0", "release", "a move") is None
    assert items.owners == ["ps0", "ps1"]
    assert (await rows_of(items)).keys() == before.keys()


async def test_of_two_moves_of_the_same_slots_at_once_one_ends(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    items, its = await table_of(ps, "items"), await table_of(other, "items")
    await train(ps, items, drawn(1))
    before = await rows_of(items)
    moves = await asyncio.gather(
        ps.drain("ps0", "ps2", [items]), other.drain("ps0", "ps1", [its]), return_exceptions=True
    )
    assert not all(isinstance(each, BaseException) for each in moves)
    assert "ps0" not in (await items.follower.follow_all()).owners
    assert await rows_of(items) == await rows_of(its) == before


async def test_a_move_leaves_the_rows_that_another_one_brings_to_the_same_owner(
    trio: tuple[tc.Client, tc.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins, with what it knew before, while the first one is decided."""
    ps, other = trio
    items, its = await table_of(ps, "items"), await table_of(other, "items")
    await train(ps, items, drawn(1))
    before = await rows_of(items)
    original = Move._call
    ready, begun, released, purged = (asyncio.Event() for _ in range(4))
    waits = {("ps0", "release"): begun, ("ps1", "agree"): ready, ("ps1", "purge"): released}
    tells = {("ps0", "is_ready"): ready, ("ps0", "release"): released}
    tells |= {("ps1", "begin_arrival"): begun, ("ps1", "purge"): purged}

    async def call(move: Move, owner: str, method: str, *args: Any) -> Any:
        step = move._source, method
        if step in waits:
            await waits[step].wait()
        if step == ("ps0", "agree") and released.is_set():
            await purged.wait()
        result = await original(move, owner, method, *args)
        if step in tells:
            tells[step].set()
        return result

    monkeypatch.setattr(Move, "_call", call)
    await asyncio.gather(ps.drain("ps0", "ps2", [items], pause=10.0), other.drain("ps1", "ps2", [its], pause=10.0))
    assert (await items.follower.follow_all()).owners == ("ps2",)
    assert await rows_of(items) == before


async def test_a_move_that_nobody_goes_on_with_is_forgotten(
    trio: tuple[tc.Client, tc.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, _ = trio
    items = await table_of(ps, "items")
    await items.follower.call("ps0", "begin_move", "a move", items.routing.slots("ps0"), "ps2")
    monkeypatch.setattr(slot_changes, "ABANDONED_SECONDS", 0.0)
    monkeypatch.setattr(slot_changes, "_MOST_NOTED", 2)
    for step in range(3):
        await train(ps, items, drawn(step))
    with pytest.raises(tc.errors.RowsMovedError, match="has ended this move"):
        await items.follower.call("ps0", "changed_rows", "a move")


async def test_rows_that_move_while_all_are_read_are_an_error(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    items = await table_of(ps, "items")
    await items.upsert(torch.arange(5000), torch.ones(5000, 4))
    reading = items.blocks()
    await anext(reading)
    await other.drain("ps1", "ps0", ["items"])
    with pytest.raises(tc.errors.RowsMovedError, match="have moved"):
        async for _ in reading:
            pass


async def test_rows_that_do_not_fit_stay_where_they_are(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, _ = trio
    items = await table_of(ps, "items", max_rows=60)
    await items.upsert(torch.arange(100), torch.ones(100, 4))
    with pytest.raises(tc.errors.TooLargeError):
        await ps.drain("ps0", "ps1", [items])
    assert await items.size() == 100
    await train(ps, items, torch.arange(10))


async def test_an_open_pass_may_look_up_again_while_a_table_is_closed(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    items, its = await table_of(ps, "items"), await table_of(other, "items")
    async with ps.context() as ctx:
        rows = await items(drawn(1))
        await its.follower.call("ps0", "begin_move", "a move", items.routing.slots("ps0"), "ps2")
        await its.follower.call("ps0", "close", "a move", 10.0)
        assert not await its.follower.call("ps0", "is_quiet", "a move")
        bags = await items.bag(drawn(2), torch.arange(64))
        await ctx.backward(rows.sum() + bags.sum(), step=items.optimizer)
    async with asyncio.timeout(50):
        while not await its.follower.call("ps0", "is_quiet", "a move"):  # noqa: ASYNC110 (the end of the pass follows)
            await asyncio.sleep(0.001)
    await its.follower.call("ps0", "reopen", "a move", True)
    await train(other, its, drawn(3))


async def test_a_handle_follows_after_the_owner_is_gone(start_owner: StartOwner) -> None:
    owners = [await start_owner(name) for name in NAMES]
    addresses = [each.address for each in owners]
    async with tc.connect(*addresses) as ps, tc.connect(*addresses, reconnect_timeout=0.1) as late:
        items, its, rest = await table_of(ps, "items"), await table_of(late, "items"), await table_of(late, "rest")
        await train(ps, items, drawn(1))
        before = await rows_of(items)
        await ps.drain("ps0", "ps2", [items])
        await owners[0].stop()
        assert its.owners == ["ps0", "ps1"]
        ids = drawn(1).unique()
        assert bits(await its(ids)) == bits(await items(ids))
        assert its.owners == ["ps1", "ps2"]
        assert await rows_of(its) == before
        with pytest.raises(tc.errors.UnavailableError, match="no owner could be reached"):
            await rest(ids)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "read"])
async def test_a_look_up_during_which_a_table_is_closed_is_repeated(
    trio: tuple[tc.Client, tc.Client], monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """Who closes the table may not see that its rows are used, so they must not be."""
    ps, _ = trio
    items = await table_of(ps, "items", owners=["ps0"])
    found, calls = HostedTable.found, []

    def close(table: HostedTable, *args: Any) -> torch.Tensor:
        rows = found(table, *args)
        calls.append(table)
        if len(calls) == 1:
            table.begin_move("a move", table.routing.slots("ps0"), "ps1")
            table.close("a move", 0.05)
        return rows

    monkeypatch.setattr(HostedTable, "found", close)
    if recorded:
        await train(ps, items, drawn(1))
        assert len(calls) == 3
    else:
        await items(drawn(1))
        assert len(calls) == 2


@pytest.mark.parametrize("stepped", [True, False], ids=["stepped", "not yet"])
async def test_a_pass_that_is_run_again_after_a_move_counts_once(
    trio: tuple[tc.Client, tc.Client], stepped: bool
) -> None:
    ps, other = trio
    items = await table_of(ps, "items", tc.tables.SGD(1.0), owners=["ps0"], init=tc.tables.Zeros())
    ids, attempts = torch.arange(40), []

    async def step(ctx: tc.Context) -> None:
        loss = (await items(ids)).sum()
        attempts.append(loss.item())
        await ctx.backward(loss)
        if stepped or len(attempts) > 1:
            await items.step(ctx)
        if len(attempts) == 1:  # as if another owner had been killed
            raise tc.errors.ContextLostError("lost")

    async def attach() -> None:
        await other.rebalance(["items"], ["ps1", "ps2"])

    await ps.run(step, attach=attach)
    assert len(attempts) == 2
    assert items.owners == ["ps1", "ps2"]
    assert (await items(ids) == -1.0).all()
    await ps.run(step)
    assert (await items(ids) == -2.0).all()


async def test_a_handle_follows_after_the_only_owner_that_it_knew_is_gone(start_owner: StartOwner) -> None:
    owners = [await start_owner(name) for name in NAMES]
    addresses = [each.address for each in owners]
    async with tc.connect(*addresses) as ps, tc.connect(*addresses, reconnect_timeout=0.1) as late:
        items = await table_of(ps, "items", owners=["ps0"])
        await train(ps, items, drawn(1))
        await ps.drain("ps0", "ps1", [items])
        its, before = await late.table("items"), await rows_of(items)
        await ps.drain("ps1", "ps2", [items])
        await owners[1].stop()
        assert its.owners == ["ps1"]
        assert bits(await its(drawn(1))) == bits(await items(drawn(1)))
        assert its.owners == ["ps2"] and await rows_of(its) == before
