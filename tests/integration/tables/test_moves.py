"""Tests of rows of tables that move from one owner to another while trainers train."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_wire.tables.routing import SLOTS, slots_of
from tests.conftest import StartOwner
from tests.integration.support import bits
from tests.integration.tables.moving import NAMES, Addresses, drawn, rows_of, table_of, train
from trainer_client.tables.moves import Move


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        pytest.param(tc.tables.RowWiseAdagrad(0.5), torch.bfloat16, id="row_wise_adagrad-torch.bfloat16"),
        pytest.param(tc.tables.LazyAdam(0.1), torch.bfloat16, id="lazy_adam-torch.bfloat16"),
    ],
)
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
        for step in range(8):
            losses.append(await train(*((ps, items) if step % 2 else (other, its)), drawn(step)))
            if name == "moved" and step == 1:
                await other.rebalance([its])
            elif name == "moved" and step == 3:
                await other.drain("ps0", tables=[name])
            elif name == "moved" and step == 5:
                await other.drain("ps1", "ps0", [its])
        assert await items.size() == await its.size()
        found.append((losses, await rows_of(items)))
    assert found[0] == found[1]
    assert items.owners == ["ps0", "ps2"]
    assert sorted(items.optimizer.remotes) == sorted(items.shards) == ["ps0", "ps2"]


async def test_rows_move_while_trainers_train(addresses: Addresses) -> None:
    """Each trainer has ids of its own, so that the order of their steps does not matter."""
    found: list[Any] = []
    counts, evict = [10, 10], tc.tables.Eviction(ttl=1e5)

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
                if moves:
                    made = await mover.rebalance([own])
                    assert own.owners == list(NAMES)
                    made += await mover.drain("ps0", tables=[own])
                    assert own.owners == ["ps1", "ps2"]
                    assert sum(each.slots for each in made) > SLOTS // 2
                    assert all(each.pause > 0 for each in made)
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


@pytest.mark.parametrize("non_finite", ["apply", "refuse"])
async def test_new_owners_do_with_nan_as_the_others(trio: tuple[tc.Client, tc.Client], non_finite: Any) -> None:
    ps, other = trio
    items = await table_of(ps, "items", tc.tables.SGD(0.5), owners=["ps0"], non_finite=non_finite)
    its = await other.table("items")
    await other.rebalance([its], NAMES)
    await train(ps, items, drawn(1))
    await other.drain("ps0", "ps2", [its])
    refused = pytest.raises(tc.errors.NonFiniteGradientError) if non_finite == "refuse" else nullcontext()
    for owner in ("ps1", "ps2"):
        ids = torch.arange(50)[items.routing.slots(owner)[slots_of(torch.arange(50))]]
        async with ps.context() as ctx:
            with refused:
                await ctx.backward((await items(ids)).sum() * torch.nan, step=items.optimizer)


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
    # Other tables move all the same.
    tables = [await table_of(ps, name) for name in ("first", "zero")]
    with pytest.raises(tc.errors.InvalidArgumentError, match="items"):
        await ps.rebalance()
    assert [(await each.follower.follow_all()).owners for each in tables] == [NAMES, NAMES]
    # Between those that are there, and keep some, slots move.
    slots = items.routing.slots("ps0") & (torch.arange(SLOTS) % 2 == 0)
    assert (await Move(ps._tables, items, "ps0", "ps1", slots).run()).slots == int(slots.sum())


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


def test_blocking_programs_move_rows(owners_beside: list[str]) -> None:
    with tc.connect(*owners_beside[:2]) as ps:
        items = ps.table("items", 2, owners=["ps0"])
        items.upsert(torch.arange(100), torch.ones(100, 2))
        (moved,) = ps.rebalance([items])
        assert (moved.source, moved.target, moved.slots) == ("ps0", "ps1", SLOTS // 2)
        assert items.owners == ["ps0", "ps1"]
        assert sum(len(block["ids"]) for block in items.blocks()) == 100


async def test_a_table_is_found_by_name_where_its_rows_are_now(start_owner: StartOwner) -> None:
    """Also if an owner that was killed has gone back to a time at which it had them all."""
    servers = [await start_owner(name) for name in ("ps0", "ps1")]
    async with tc.connect(*(each.address for each in servers)) as ps:
        items = await table_of(ps, "items")
        await ps.drain("ps1", tables=[items])
        earlier = items.routing
        await ps.drain("ps0", tables=[items])
        servers[0].engine.registry.named("items").value.take(earlier)
        for addresses in ([0, 1], [1, 0]):
            async with tc.connect(*(servers[each].address for each in addresses)) as other:
                assert (await other.table("items")).owners == ["ps1"]
