"""Tests of hosted modules that look up in tables."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import trainer_client as tc
from ps_service.tables.hosted_table import HostedTable
from tests import table_models
from tests.conftest import StartProcess
from tests.integration.breaking import same_wherever_it_breaks
from tests.integration.restarting import Owner
from tests.integration.support import bits, in_memory
from tests.integration.tables.conftest import Group
from tests.waiting import until
from trainer_client.transport.faulty import Direction, Fault, FaultyConnector
from trainer_client.transport.faulty import Plan as BreakPlan

ROWS, DIM = 12, 4
IDS = torch.tensor([[5, 1, 5], [11, 0, 1]])
"""With duplicates; over two owners, both have rows of these."""

SCORED = "tests.table_models.Scored"


PLACES = {"one owner": ["ps0"], "both owners": ["ps0", "ps1"], "the other owner": ["ps1"]}


@pytest.mark.parametrize("owners", PLACES.values(), ids=PLACES)
async def test_a_module_with_a_table_trains_as_local_torch(group: Group, owners: list[str]) -> None:
    ps = group.ps
    items, others = [
        await ps.table(name, DIM, tc.tables.SGD(lr=0.5), rows=ROWS, owners=owners) for name in ("items", "others")
    ]
    net, plain = [await ps.module(SCORED, each, DIM, owner="ps0", seed=0) for each in (items, others)]
    opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1)
    plain_opt = await ps.optimizer(torch.optim.SGD, [others, *plain.parameters()], lr=0.1)
    rows, head = nn.Embedding(ROWS, DIM, sparse=True), nn.Linear(DIM, 1)
    await others.upsert(torch.arange(ROWS), first := (await items(torch.arange(ROWS))).detach())
    rows.load_state_dict({"weight": first})
    state = await net.state_dict()
    assert state.keys() == {"head.weight", "head.bias"}
    head.load_state_dict({name.removeprefix("head."): each for name, each in state.items()})
    local = torch.optim.SGD([{"params": rows.parameters(), "lr": 0.5}, {"params": head.parameters()}], lr=0.1)
    for step in range(12):
        ids = (IDS + step) % ROWS
        async with ps.context() as ctx:
            loss = functional.softplus(await net(ids)).sum()
            await ctx.backward(loss, step=opt)
        async with ps.context() as ctx:
            same = functional.softplus(await plain.of_rows(await others(ids))).sum()
            await ctx.backward(same, step=plain_opt)
        expected = functional.softplus(head(rows(ids))).sum()
        local.zero_grad()
        expected.backward()
        rows.weight.grad = rows.weight.grad.coalesce()  # adds the gradients of a row before the step
        local.step()
        assert torch.equal(loss, expected) and torch.equal(same, expected)
    for table, module in ((items, net), (others, plain)):
        assert torch.equal(await table(torch.arange(ROWS)), rows.weight)
        assert torch.equal((await module.state_dict())["head.weight"], head.weight)


async def state_of(items: tc.Table, net: tc.RemoteModule, ids: torch.Tensor) -> list[bytes]:
    """Rows with what their optimizer keeps, and parameters, bit by bit."""
    blocks = [block async for block in items.blocks()]
    kept = torch.cat([torch.cat([block["ids"][:, None], block["sightings"][:, None]], 1) for block in blocks])
    kept = kept[kept[:, 0].argsort()]
    return bits([kept, await items(ids), *(await net.state_dict()).values()])


@pytest.mark.parametrize("owners", PLACES.values(), ids=PLACES)
async def test_bits_are_those_of_rows_that_the_trainer_looks_up(group: Group, owners: list[str]) -> None:
    ps, found = group.ps, []
    offsets, weights = torch.tensor([0, 2, 2]), torch.tensor([0.5, -2.0, 3.0, 0.25, 1.0, 1.5])
    for inside in (True, False):
        kept = {"max_rows": 1000, "evict": tc.tables.Eviction(at_capacity="least_frequent")}
        items = await ps.table(f"items{inside}", DIM, tc.tables.LazyAdam(lr=0.1), owners=owners, **kept)
        net = await ps.module(SCORED, items, DIM, owner="ps0", seed=0)
        opt = await ps.optimizer(torch.optim.Adam, [items, *net.parameters()], lr=0.1)
        losses = []
        for step in range(4):
            ids = IDS + step
            flat, own = ids.reshape(-1), weights.clone().requires_grad_()
            async with ps.context() as ctx:
                rows = await items(flat[:4])  # the same rows are looked up here in the same pass
                if inside:
                    scores = [
                        await net.twice(ids, flat, rows),
                        (await net.pooled(flat, offsets, "sum", own)).sum(),
                        (await net.pooled(flat, offsets, "mean")).sum(),
                        (await net.pooled(flat, offsets, "max")).sum(),
                    ]
                else:
                    first, second = await items(ids), await items(flat)
                    scores = [
                        (await net.of_rows(first)).sum()
                        + 3 * (await net.of_rows(second)).sum()
                        + 5 * (await net.of_rows(rows)).sum()
                    ]
                    for mode, given in (("sum", own), ("mean", None), ("max", None)):
                        scores.append((await net.of_rows(await items.bag(flat, offsets, mode, given))).sum())
                loss = sum(scores[1:], scores[0])
                await ctx.backward(loss, step=opt)
                losses += [loss.detach(), own.grad]
        found.append((losses, await state_of(items, net, torch.arange(16))))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][1][0] == found[1][1][0]  # which rows there are, and how often they were looked up


async def test_rows_of_the_same_owner_need_no_request(group: Group) -> None:
    ps = group.ps
    items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), owners=["ps0"])
    net = await ps.module(SCORED, items, DIM, owner="ps0")
    before = group.requests("ps0")
    for _ in range(10):
        async with ps.context() as ctx:
            await ctx.backward((await net(IDS)).sum(), step=[items.optimizer])
    assert group.requests("ps0") - before == 10 and group.requests("ps1") == 0


async def test_look_ups_outside_of_passes_make_no_rows(group: Group) -> None:
    ps = group.ps
    for owners in (["ps0"], ["ps0", "ps1"]):
        items = await ps.table(f"on{len(owners)}", DIM, tc.tables.SGD(lr=0.5), owners=owners)
        net = await ps.module(SCORED, items, DIM, owner="ps0")
        outside = await net(IDS)
        assert torch.equal(outside, await net.of_rows(await items(IDS)))
        assert torch.equal(await ps.call("tests.table_models.rows_of", items, IDS, owner="ps0"), 2 * await items(IDS))
        async with ps.context() as ctx:
            loss = (await net.without_grad(IDS)).sum()
            await ctx.backward(loss, step=[items.optimizer])
        assert await items.size() == 0
        async with ps.context() as ctx:
            assert (await net(IDS[:0])).shape == (0, 3, 1)
            empty = await net.pooled(torch.tensor([], dtype=torch.int64), torch.tensor([0, 0]), "sum")
            await ctx.backward((await net.given(items, IDS)).sum() + empty.sum(), step=[items.optimizer])
            rows = await ps.call("tests.table_models.rows_of", items, IDS, owner="ps0")
            assert torch.equal(rows, 2 * await items(IDS))
        assert await items.size() == 4
        assert not torch.equal(await net(IDS), outside)


async def test_an_id_is_seen_once_for_each_look_up(group: Group) -> None:
    ps = group.ps
    items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), owners=["ps0"], admit=tc.tables.AfterSightings(3))
    net = await ps.module(SCORED, items, DIM, owner="ps0")
    sizes = []
    for _ in range(4):
        async with ps.context() as ctx:
            await ctx.backward((await net(IDS[:1, :2])).sum(), step=[items.optimizer])
        sizes.append(await items.size())
    assert sizes == [0, 0, 2, 2]


async def admitted(plan: BreakPlan) -> list[Any]:
    """All that a program sees whose ids get rows with the second sighting."""
    seen: list[Any] = []
    async with in_memory() as owner, tc.connect(FaultyConnector(owner.connector(), plan)) as ps:
        items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), admit=tc.tables.AfterSightings(2))
        net = await ps.module(SCORED, items, DIM, seed=0)
        for _ in range(3):
            async with ps.context() as ctx:
                await ctx.backward((await net(IDS)).sum(), step=[items.optimizer])
            seen += [await items.size(), await items(IDS)]
    return bits(seen)


async def test_an_id_is_seen_once_wherever_a_stream_breaks() -> None:
    await same_wherever_it_breaks(admitted, Fault.CUT_AFTER, Direction.TO_OWNER)


async def test_errors_of_look_ups_reach_the_trainer(group: Group) -> None:
    ps = group.ps
    for owners in (["ps0"], ["ps1"]):
        items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), rows=ROWS, owners=owners)
        net = await ps.module(SCORED, items, DIM, owner="ps0")
        await net(IDS)
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"has the rows 0 to 11, and 12 is not one of them"):
            await net(torch.tensor([12]))
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"hosted code cannot return a table"):
            await net.returned()
        await items.delete()
        with pytest.raises((tc.errors.UnknownNameError, tc.errors.StaleHandleError), match=r"deleted"):
            await net(IDS)
        items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), rows=ROWS, owners=owners)
        assert torch.equal(await net(IDS), await net.of_rows(await items(IDS)))  # it is the table of that name
        await items.delete()
        wide = await ps.table("items", 2 * DIM, tc.tables.SGD(lr=0.5), rows=ROWS, owners=owners)
        with pytest.raises((tc.errors.InvalidArgumentError, tc.errors.StaleHandleError), match=r"dim|deleted"):
            await net(IDS)
        await wide.delete()


async def test_a_name_is_asked_for_with_the_same_table(group: Group) -> None:
    ps = group.ps
    items, users = [await ps.table(name, DIM, tc.tables.SGD(lr=0.5)) for name in ("items", "users")]
    net = await ps.module(SCORED, items, DIM, name="net")
    assert await ps.module(SCORED, items=items, dim=DIM, name="net") == net
    with pytest.raises(tc.errors.NameConflictError, match=r"made with items=<TableRef 'items'.*not <TableRef 'users'"):
        await ps.module(SCORED, users, DIM, name="net")


async def test_rows_move_while_a_module_looks_up(group: Group) -> None:
    ps = group.ps
    items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), owners=["ps0"])
    net = await ps.module(SCORED, items, DIM, owner="ps0", seed=0)
    opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1)

    async def train(steps: int) -> None:
        for step in range(steps):
            async with ps.context() as ctx:
                await ctx.backward((await net(IDS + step)).square().sum(), step=opt)

    training = asyncio.create_task(train(30))
    await ps.rebalance([items], owners=["ps0", "ps1"])
    await training
    assert items.owners == ["ps0", "ps1"]
    await train(2)
    await ps.drain("ps0", tables=[items])
    assert items.owners == ["ps1"]
    await train(2)
    assert torch.equal(await net(IDS), await net.of_rows(await items(IDS)))


@pytest.mark.parametrize("owners", PLACES.values(), ids=PLACES)
async def test_look_ups_that_no_pass_can_know_are_refused(group: Group, owners: list[str]) -> None:
    ps = group.ps
    items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), rows=ROWS, owners=owners)
    net = await ps.module(SCORED, items, DIM, owner="ps0")
    only = "only in the thread of a call that runs"
    with pytest.raises(tc.errors.PsError, match=only):
        await ps.module("tests.table_models.Begun", items, DIM, owner="ps0")
    async with ps.context() as ctx:
        with pytest.raises(tc.errors.PsError, match=only):
            await net.in_threads(IDS)
        with pytest.raises((tc.errors.PsError, RuntimeError), match=r"backward\(\)"):
            await net.propagated(IDS)
        score = await net.checkpointed(IDS)
        with pytest.raises(tc.errors.PsError, match=only):
            await ctx.backward(score.sum())
    async with ps.context() as ctx:  # nothing of it is left
        await ctx.backward((await net(IDS)).sum(), step=items.optimizer)


@pytest.mark.parametrize("moves", [False, True])
async def test_a_later_answer_with_rows_that_have_moved_is_an_error(group: Group, moves: bool) -> None:
    ps = group.ps
    items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), owners=["ps0"])
    before = await items(IDS)
    async with ps.context() as ctx:
        call = asyncio.ensure_future(ps.call("tests.table_models.later", items, IDS))
        await until(lambda: bool(table_models.LATER))
        if moves:
            await ps.rebalance([items], owners=["ps0", "ps1"])
        future, rows = table_models.LATER.pop()
        future.set_result(rows)
        if moves:
            with pytest.raises(tc.errors.RowsMovedError, match="have moved to another owner before the call"):
                await call
            return
        await ctx.backward((await call).sum(), step=items.optimizer)
    counts = (IDS[..., None] == IDS.flatten()).sum(-1)[..., None]
    assert torch.equal(await items(IDS), before - 0.5 * 2 * counts)


async def test_a_table_counts_as_used_before_the_call_that_looks_up_has_its_record(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, contexts = group.ps, group.agents["ps0"].engine.contexts
    items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5), owners=["ps0"])
    net = await ps.module(SCORED, items, DIM, owner="ps0")
    found, used = HostedTable.found, []

    def is_used(table: HostedTable) -> bool:
        return any(each.uses(table.parameter) for each in contexts.all())

    def look_up(table: HostedTable, *args: Any, **more: Any) -> torch.Tensor:
        used.append(is_used(table))
        return found(table, *args, **more)

    monkeypatch.setattr(HostedTable, "found", look_up)
    async with ps.context():
        await net(IDS)
        await net.without_grad(IDS)
        table = group.agents["ps0"].engine.registry.named("items").value
        assert used == [True, True] and is_used(table)
    async with ps.context():
        await net.without_grad(IDS)
        assert used == [True, True, False] and not is_used(table)


async def test_owners_without_a_directory_say_what_they_need(pair: tc.Client) -> None:
    items = await pair.table("items", DIM, tc.tables.SGD(lr=0.5), owners=["ps1"])
    with pytest.raises(
        tc.errors.ForeignHandleError,
        match=r"the table 'items' has rows on ps1, which cannot be found from owner 'ps0': start the owners with "
        r"--directory",
    ):
        await pair.module(SCORED, items, DIM, owner="ps0")
    here = await pair.table("here", DIM, tc.tables.SGD(lr=0.5), owners=["ps0"])
    net = await pair.module(SCORED, here, DIM, owner="ps0")
    assert torch.equal(await net(IDS), await net.of_rows(await here(IDS)))


async def test_a_module_keeps_its_table_when_its_owner_is_killed(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability="always") as owner, tc.connect(owner.address, namespace="ads") as ps:
        items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5))
        net = await ps.module(SCORED, items, DIM, name="net", seed=0)
        opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1, name="opt")
        for kill in (owner.crash, owner.restart):
            for step in range(3):
                async with ps.context() as ctx:
                    await ctx.backward((await net(IDS + step)).square().sum(), step=opt)
            before = bits([await items.size(), await items(torch.arange(20)), await net.state_dict()])
            await kill()
            assert bits([await items.size(), await items(torch.arange(20)), await net.state_dict()]) == before
            assert torch.equal(await net(IDS), await net.of_rows(await items(IDS)))


async def test_a_module_finds_rows_of_other_owners_again(start_process: StartProcess, tmp_path: Path) -> None:
    def kept(name: str) -> list[str]:
        return ["--name", name, "--data-dir", str(tmp_path / name), "--durability", "always"]

    first = await start_process(*kept("ps0"), "--directory", "self")
    second = await start_process(*kept("ps1"), "--directory", first.address)
    async with tc.connect(first.address, second.address) as ps:
        items = await ps.table("items", DIM, tc.tables.SGD(lr=0.5))
        net = await ps.module(SCORED, items, DIM, name="net", owner="ps1", seed=0)
        opt = await ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1)
        for step in range(2):
            async with ps.context() as ctx:
                await ctx.backward((await net(IDS)).square().sum(), step=opt)
            before = bits([await net(IDS), await items(IDS)])
            if not step:
                second.process.kill()
                await second.process.wait()
                await start_process(*kept("ps1"), "--directory", first.address, "--listen", second.address)
            assert bits([await net(IDS), await items(IDS)]) == before


def test_the_blocking_client_and_replicas() -> None:
    with tc.local() as ps:
        items = ps.table("items", DIM, tc.tables.SGD(lr=0.5))
        net = ps.module(table_models.Scored, items, DIM)
        opt = ps.optimizer(torch.optim.SGD, [items, *net.parameters()], lr=0.1)
        with ps.context() as ctx:
            ctx.backward(net(IDS).sum(), step=opt)
        local = net.replica()
        with ps.context() as ctx:
            loss = local(IDS)
            assert torch.equal(loss, net(IDS))
            ctx.backward(loss.sum())
            local.push(opt, context=ctx)
        assert torch.equal(local(IDS), net(IDS))
