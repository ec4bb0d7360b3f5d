"""Tests of rows of tables that move from one owner to another while trainers train."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from contextvars import Context
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_service.tables import slot_changes
from ps_service.tables.hosted_table import HostedTable
from ps_wire.tables.routing import SLOTS
from tests.conftest import SERVE, StartOwner, process_address
from tests.forking.process import Forking
from tests.integration.support import bits
from trainer_client.tables.moves import Move

OPTIMIZERS = [tc.tables.SGD(0.5, momentum=0.9), tc.tables.RowWiseAdagrad(0.5), tc.tables.LazyAdam(0.1)]
NAMES = ("ps0", "ps1", "ps2")

Addresses = Sequence[str]


@pytest.fixture
async def addresses(start_owner: StartOwner) -> Addresses:
    return [(await start_owner(name)).address for name in NAMES]


@pytest.fixture
async def trio(addresses: Addresses) -> AsyncIterator[tuple[tc.Client, tc.Client]]:
    """Two trainers of three owners."""
    async with tc.connect(*addresses) as one, tc.connect(*addresses) as other:
        yield one, other


async def rows_of(table: tc.Table) -> dict[int, Any]:
    """What a table has for each id, but for the ages."""
    found: dict[int, Any] = {}
    async for block in table.blocks():
        names = sorted(block.keys() - {"age"})
        for number, id in enumerate(block["ids"].tolist()):
            assert id not in found
            found[id] = [bits(block[name][number]) for name in names]
    return found


async def table_of(ps: tc.Client, name: str, optimizer: Any = None, **more: Any) -> tc.Table:
    more = {"owners": ["ps0", "ps1"], "init": tc.tables.Normal(1.0)} | more
    return await ps.table(name, 4, optimizer or tc.tables.LazyAdam(0.1), **more)


async def train(ps: tc.Client, items: tc.Table, ids: torch.Tensor) -> float:
    """A pass over rows and bags of a table, with a step; its loss. Each bag has rows of one owner alone: sums over
    several have other last bits."""
    async with ps.context() as ctx:
        rows, bags = await items(ids), await items.bag(ids * 7, torch.arange(len(ids)))
        loss = rows.square().sum() + (bags - 1).square().sum()
        await ctx.backward(loss, step=items.optimizer)
    return loss.item()


def drawn(seed: int, most: int = 500) -> torch.Tensor:
    return torch.randint(-most, most, (64,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: each.kind)
async def test_rows_keep_all_that_belongs_to_them(
    trio: tuple[tc.Client, tc.Client], optimizer: Any, dtype: torch.dtype
) -> None:
    ps, other = trio
    found = []
    for name in ("plain", "moved"):
        items, its = (
            await table_of(ps, name, optimizer, dtype=dtype),
            await table_of(other, name, optimizer, dtype=dtype),
        )
        losses = []
        for step in range(12):
            losses.append(await train(*((ps, items) if step % 2 else (other, its)), drawn(step)))
            if name == "moved" and step == 2:
                await other.rebalance([its])
            elif name == "moved" and step == 5:
                await other.drain("ps0", tables=[name])
            elif name == "moved" and step == 8:
                await other.drain("ps1", "ps0", [its])
        assert await items.size() == await its.size()
        found.append((losses, await rows_of(items)))
    assert found[0] == found[1]
    assert items.owners == ["ps0", "ps2"]
    assert sorted(items.optimizer.remotes) == sorted(items.shards) == ["ps0", "ps2"]


@pytest.mark.parametrize("evict", [None, tc.tables.Eviction(ttl=1e5)], ids=["stays", "evicted"])
async def test_rows_move_while_trainers_train(addresses: Addresses, evict: Any) -> None:
    """Each trainer has ids of its own, so that the order of their steps does not matter."""
    found: list[Any] = []
    counts = [60, 60]

    async def program(name: str, moves: bool) -> tuple[list[list[float]], dict[int, Any]]:
        async with AsyncExitStack() as stack:
            mover, *trainers = [await stack.enter_async_context(tc.connect(*addresses)) for _ in range(3)]
            own = await table_of(mover, name, evict=evict)
            done = asyncio.Event()
            losses: list[list[float]] = [[], []]

            async def run(number: int) -> None:
                items = await table_of(trainers[number], name, evict=evict)
                while len(losses[number]) < counts[number] or not done.is_set():
                    ids = drawn(len(losses[number])) * 2 + number
                    losses[number].append(await train(trainers[number], items, ids))

            async def move() -> None:
                for _ in range(2 * moves):
                    made = await mover.rebalance([own])
                    assert own.owners == list(NAMES)
                    made += await mover.drain("ps0", tables=[own])
                    assert own.owners == ["ps1", "ps2"]
                    assert sum(each.slots for each in made) > SLOTS // 2
                    assert max(each.pause for each in made) <= 0.2
                done.set()

            await asyncio.gather(run(0), run(1), move())
            counts[:] = [len(each) for each in losses]
            return losses, await rows_of(own)

    for name in ("moved", "plain"):
        found.append(await program(name, name == "moved"))
    assert found[0] == found[1]


async def test_a_handle_that_has_not_heard_of_a_move_follows_with_any_request(
    trio: tuple[tc.Client, tc.Client], tmp_path: Any
) -> None:
    ps, other = trio
    ids = drawn(1).unique()
    offsets = torch.arange(0, len(ids), 4)

    async def in_pass(items: tc.Table) -> Any:
        async with other.context() as ctx:
            found = await other.look_up({items: ids})
            await ctx.backward(found[items].sum(), step=items.optimizer)
        return bits(await items(ids))

    async def exported(items: tc.Table) -> Any:
        return await items.export(tmp_path / items.name), await items.restore(tmp_path / items.name)

    requests: dict[str, Callable[[tc.Table], Any]] = {
        "rows": lambda items: items(ids),
        "bags": lambda items: items.bag(ids, torch.arange(len(ids))),
        "max": lambda items: items.bag(ids, offsets, "max"),
        "pass": in_pass,
        "size": lambda items: items.size(),
        "blocks": rows_of,
        "upsert": lambda items: items.upsert(ids, torch.ones(len(ids), 4)),
        "remove": lambda items: items.remove(ids),
        "clear": lambda items: items.clear(),
        "restore": exported,
    }
    for what, request in requests.items():
        results = []
        for name in (f"{what}-plain", f"{what}-moved"):
            items, its = await table_of(ps, name), await table_of(other, name)
            await train(other, its, ids)
            if name.endswith("moved"):
                await ps.drain("ps0", "ps2", [items])
                assert its.owners == ["ps0", "ps1"]
            result = await request(its)
            if name.endswith("moved") and what != "blocks":
                assert its.owners == ["ps1", "ps2"], what
            read = sorted(result) if what == "blocks" else bits(result)
            results.append((read, await rows_of(items), await items.size()))
        assert results[0] == results[1], what


async def test_other_optimizers_step_with_the_owners_that_have_the_rows(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    found = []
    for name in ("plain", "moved"):
        items = await table_of(ps, name)
        net = await ps.module(nn.Linear, 4, 1, name=f"{name}-net", owner="ps1", seed=3)
        opt = await ps.optimizer(torch.optim.Adam, [items, *net.parameters()], lr=0.1)
        for step in range(6):
            if name == "moved" and step == 3:
                await other.drain("ps0", "ps2", [name])
            async with ps.context() as ctx:
                await ctx.backward((await net(await items(drawn(step)))).square().sum(), step=opt)
        found.append((await rows_of(items), bits(await net.state_dict())))
    assert found[0] == found[1]
    assert sorted(opt.tables["moved"].remotes) == ["ps1", "ps2"]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_new_owners_have_the_options_of_the_optimizer(
    trio: tuple[tc.Client, tc.Client], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    ps, other = trio
    items = await table_of(ps, "items", tc.tables.SGD(0.5))
    copy = Move._copy

    async def change_then(move: Move) -> None:
        await copy(move)
        await items.optimizer.set_options(lr=2.0)

    if when == "before":
        await items.optimizer.set_options(lr=2.0)
    else:
        monkeypatch.setattr(Move, "_copy", change_then)
    await other.drain("ps0", "ps2", ["items"])
    ids = torch.arange(50)
    before = await items(ids)
    async with ps.context() as ctx:
        await ctx.backward((await items(ids)).sum(), step=items.optimizer)
    assert torch.allclose(await items(ids), before - 2.0)


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


async def test_what_only_the_owners_of_a_table_have_keeps_its_slots_there(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, _ = trio
    items = await table_of(ps, "items")
    await ps.scheduler(lr_scheduler.StepLR, items.optimizer, step_size=2, gamma=0.5)
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"the scheduler 'items.optimizer.StepLR'"):
        await ps.drain("ps0", tables=[items])
    rounds = await table_of(ps, "rounds", policy=tc.policies.Sync())
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"the policy Sync"):
        await ps.rebalance([rounds])
    assert items.owners == rounds.owners == ["ps0", "ps1"]
    # Between those that are there, and keep some, slots move.
    slots = items.routing.slots("ps0") & (torch.arange(SLOTS) % 2 == 0)
    assert (await Move(ps._tables, items, "ps0", "ps1", slots).run()).slots == int(slots.sum())


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


async def test_later_clients_find_a_table_that_has_moved(addresses: Addresses) -> None:
    async with tc.connect(*addresses) as ps:
        items = await table_of(ps, "items")
        await train(ps, items, drawn(1))
        before = await rows_of(items)
        await ps.drain("ps0", tables=[items])
    for owners in (["ps0", "ps1"], ["ps1", "ps2"], None):
        async with tc.connect(*addresses) as ps:
            for replace in (False, True):
                items = await table_of(ps, "items", owners=owners, replace=replace)
                assert items.owners == ["ps1", "ps2"]
            assert await rows_of(await ps.table("items")) == before
    async with tc.connect(addresses[0], addresses[1]) as ps:
        with pytest.raises(tc.errors.UnknownNameError, match="ps2"):
            await ps.table("items")


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
    async with asyncio.timeout(10):
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
    found, calls = HostedTable._found, []

    def close(table: HostedTable, *args: Any) -> torch.Tensor:
        rows = found(table, *args)
        calls.append(table)
        if len(calls) == 1:
            table.begin_move("a move", table.routing.slots("ps0"), "ps1")
            table.close("a move", 0.05)
        return rows

    monkeypatch.setattr(HostedTable, "_found", close)
    if recorded:
        await train(ps, items, drawn(1))
        assert len(calls) == 3
    else:
        await items(drawn(1))
        assert len(calls) == 2


async def test_tables_of_fixed_size_move(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    found = []
    for name in ("plain", "moved"):
        items = await table_of(ps, name, rows=4000)
        for step in range(6):
            if name == "moved" and step == 3:
                await other.drain("ps1", "ps2", [name])
            await train(ps, items, drawn(step).abs())
        found.append(await rows_of(items))
    assert found[0] == found[1]
    assert items.owners == ["ps0", "ps2"]


async def test_a_table_that_has_moved_is_deleted_everywhere(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    for by_name in (False, True):
        items = await table_of(ps, "items", tc.tables.SGD(1.0))
        await ps.drain("ps0", "ps1", [items])
        await (other.delete("items", owner="ps0") if by_name else items.delete())
        for owner in NAMES:
            with pytest.raises(tc.errors.UnknownNameError):
                await ps.attach("items", owner=owner)
        await (await table_of(ps, "items", tc.tables.SGD(2.0), dtype=torch.float16)).delete()


def test_blocking_programs_move_rows(forking: Forking) -> None:
    with process_address(forking) as first, ExitStack() as stack:
        second = stack.enter_context(forking.start(*SERVE, "--name", "ps1"))
        line = second.stdout.readline()
        with tc.connect(first, line.split()[-1]) as ps:
            items = ps.table("items", 2, owners=["ps0"])
            items.upsert(torch.arange(100), torch.ones(100, 2))
            (moved,) = ps.rebalance([items])
            assert (moved.source, moved.target, moved.slots) == ("ps0", "ps1", SLOTS // 2)
            assert items.owners == ["ps0", "ps1"]
            assert sum(len(block["ids"]) for block in items.blocks()) == 100
