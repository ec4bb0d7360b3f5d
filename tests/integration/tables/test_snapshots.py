"""Snapshots: modules and tables as they were at one moment, while trainers train them."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import ps_reader
import trainer_client as tc
from ps_service.tables import answers
from ps_service.tables.budget import TableBudget
from ps_service.tables.pinned_rows import PinnedRows
from ps_service.tables.shard import TableShard
from tests import snapshot_models, table_models
from tests.integration.restarting import Owner
from tests.integration.tables.conftest import Group
from tests.integration.tables.exports import as_read
from tests.integration.tables.moving import table_of, train
from tests.waiting import until

IDS = torch.arange(-40, 60)
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


async def rows_of(table: Any, **more: Any) -> dict[int, bytes]:
    return {
        int(id): row.numpy().tobytes()
        async for block in table.blocks(**more)
        for id, row in zip(block["ids"], block["values"], strict=True)
    }


async def net_of(ps: tc.Client, name: str = "net", owner: str = "") -> tuple[tc.RemoteModule, Any]:
    net = await ps.module(nn.BatchNorm1d, 4, name=name, owner=owner)
    return net, await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)


async def one_pass(ps: tc.Client, net: tc.RemoteModule, opt: Any) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await net(X)).square().sum(), step=opt)


async def test_a_snapshot_stays_while_training_goes_on(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    items = await table_of(ps, "items")
    net, opt = await net_of(ps, owner="ps1")
    await train(ps, items, IDS)
    await one_pass(ps, net, opt)
    rows, read, state, scores = (
        await rows_of(items, state=False),
        await items.read(IDS),
        await net.state_dict(),
        await net.read(X),
    )
    pinned = await ps.snapshot("monday", [net, items])
    for _ in range(3):
        await train(ps, items, IDS)
        await one_pass(ps, net, opt)
    await items.remove(IDS[:20])
    await items.upsert(IDS[50:] + 1000, torch.zeros(50, 4))
    for each in (items, net):
        with pytest.raises(TypeError, match="of a snapshot is not trained, and so not called: read"):
            pinned[each](IDS)
    for each in (pinned, await other.snapshot("monday")):
        assert await rows_of(each[items]) == rows and await each["items"].size() == len(rows)
        found = await each[items].read(IDS[:50].view(5, 10), default=-1)
        assert torch.equal(found.values.view(-1, 4), read.values[:50]) and found.versions == read.versions
        missing = await each[items].read(torch.tensor([5, 1010]), default=-1)
        assert missing.found.tolist() == [True, False] and missing.values[1].tolist() == [-1.0] * 4
        assert torch.equal(await each[net].read(X), scores)
        after = await each["net"].state_dict()
        assert after.keys() == state.keys() and all(torch.equal(after[name], state[name]) for name in state)
        assert repr(each) == "<Snapshot 'monday' of items, net>"
    assert await rows_of(items, state=False) != rows and not torch.equal(await net.read(X), scores)
    assert set(await pinned.nbytes()) == {"ps0", "ps1"}
    await pinned.remove()
    with pytest.raises(tc.errors.StaleHandleError, match=r"Make it again with ps.snapshot\(…\)"):
        await pinned[net].read(X)
    with pytest.raises(tc.errors.UnknownNameError, match="there is no snapshot 'monday' on ps0, ps1, ps2"):
        await other.snapshot("monday")
    assert torch.equal(await (await ps.snapshot("monday", [net]))[net].read(X), await net.read(X))


async def test_all_of_an_owner_is_as_of_the_same_step(ps: tc.Client) -> None:
    items = await ps.table("items", 1, tc.tables.SGD(1.0), init=tc.tables.Zeros())
    net = await ps.module(nn.Linear, 1, 1, bias=False, name="net")
    await net.load_state_dict({"weight": torch.zeros(1, 1)})
    opt = await ps.optimizer(optim.SGD, [*net.parameters(), items], lr=1.0)  # one step for both

    async def steps() -> None:
        while True:
            async with ps.context() as ctx:
                loss = -(await net(torch.ones(1, 1))).sum() - (await items(torch.tensor([5]))).sum()
                await ctx.backward(loss, step=opt)

    training, seen = asyncio.create_task(steps()), set()
    for number in range(15):
        pinned = await ps.snapshot(f"at-{number}", [net, items])
        weight = (await pinned[net].state_dict())["weight"].item()
        assert weight == (await pinned[items].read(torch.tensor([5]))).values.item()
        seen.add(weight)
        await pinned.remove()
    training.cancel()
    with suppress(asyncio.CancelledError):
        await training
    assert len(seen) > 1


async def test_a_snapshot_stays_where_its_rows_have_moved(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    items = await table_of(ps, "items")
    await train(ps, items, IDS)
    before, first = await rows_of(items, state=False), await ps.snapshot("first", [items])
    await ps.rebalance([items])
    await train(ps, items, IDS)
    between, second = await rows_of(items, state=False), await ps.snapshot("second", [await other.table("items")])
    await ps.rebalance([items], owners=["ps2"])
    await train(ps, items, IDS)
    for pinned, rows in ((first, before), (second, between)):
        assert await rows_of(pinned[items]) == rows and await pinned[items].size() == len(rows)
        found = await pinned[items].read(torch.tensor(list(rows)))
        assert [each.numpy().tobytes() for each in found.values] == list(rows.values())
    assert len(second[items].versions) == 3 and between != before


async def test_snapshots_are_exported(pair: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ps_service.tables.pinned_part.PIECE_BYTES", 256)
    items = await pair.table("items", 4)
    net, opt = await net_of(pair)
    await train(pair, items, IDS)
    rows, state = await rows_of(items, state=False), await net.state_dict()
    pinned, exact = await pair.snapshot("monday", [net, items]), await items.read(IDS)
    await train(pair, items, IDS)
    await one_pass(pair, net, opt)
    for _ in range(2):
        await pair.export(tmp_path / "out", snapshot="monday")
    await pair.export(tmp_path / "rounded", snapshot="monday", tables=["items"], compress=tc.codecs.BF16())
    with ps_reader.open(tmp_path / "out") as reader, ps_reader.open(tmp_path / "rounded") as rounded:
        assert reader.current.modules == ["net"]
        assert as_read(reader.current) == rows == await rows_of(pinned[items])
        written = reader.current.state_dict("net")
        assert all(torch.equal(torch.from_numpy(written[name].copy()), each) for name, each in state.items())
        half = {int(id): row.bfloat16().float().numpy().tobytes() for id, row in zip(IDS, exact.values, strict=True)}
        found = as_read(rounded.current)
        assert {id: found[id] for id in half} == half
    await pair.export(tmp_path / "out")
    with ps_reader.open(tmp_path / "out") as reader:
        assert as_read(reader.current) == await rows_of(items, state=False)
    with pytest.raises(tc.errors.InvalidArgumentError, match="nothing to follow"):
        await pair.export(tmp_path / "out", snapshot="monday", follow=True)
    with pytest.raises(tc.errors.UnknownNameError, match="snapshot 'monday' has no table 'users'; it has items, net"):
        await pair.export(tmp_path / "out", snapshot="monday", tables=["users"])


async def test_readers_of_snapshots_ask_together(ps: tc.Client) -> None:
    items = await ps.table("items", 4)
    await items.upsert(IDS, torch.randn(len(IDS), 4))
    net, _ = await net_of(ps)
    before, scores = await items.read(IDS), await net.read(X)
    pinned = await ps.snapshot("monday", [items, net])
    await items.clear()
    rows, results = ps.reader(pinned[items], default=3.0), ps.reader(pinned[net])
    found = await asyncio.gather(*(rows(each) for each in IDS.split(9)))
    assert torch.equal(torch.cat([each.values for each in found]), before.values)
    torch.testing.assert_close(torch.cat(await asyncio.gather(*(results(each) for each in X.split(1)))), scores)


def test_plain_threads_have_snapshots(owner_beside: str) -> None:
    with tc.connect(owner_beside) as ps:
        items = ps.table("items", 4)
        items.upsert(IDS, torch.randn(len(IDS), 4))
        net = ps.module(nn.Linear, 4, 2, name="net")
        pinned = ps.snapshot("monday", [items, net])
        before, scores = items.read(IDS).values, net.read(X)
        items.clear()
        net.load_state_dict({name: each + 1 for name, each in net.state_dict().items()})
        assert torch.equal(pinned[items].read(IDS).values, before) and torch.equal(pinned[net].read(X), scores)
        (block,) = pinned["items"].blocks()
        assert sorted(block["ids"].tolist()) == IDS.tolist()
        assert ps.snapshot("monday")[net].state_dict().keys() == net.state_dict().keys()
        pinned.remove()


async def test_what_cannot_be_in_a_snapshot_is_refused_and_nothing_is_made(ps: tc.Client) -> None:
    items, net = await ps.table("items", 4), await ps.module(nn.Linear, 4, 2, name="net")
    for name in ("", "a b", "a@b", "x" * 65, "ads::monday"):
        with pytest.raises(tc.errors.InvalidArgumentError, match="the name of a snapshot is 1 to 64"):
            await ps.snapshot(name, [net])
    with pytest.raises(tc.errors.InvalidArgumentError, match="at least one module or table"):
        await ps.snapshot("monday", [])
    with pytest.raises(tc.errors.InvalidArgumentError, match="objects that have a name: make torch"):
        await ps.snapshot("monday", [items, await ps.module(nn.Linear, 4, 2)])
    with pytest.raises(tc.errors.InvalidArgumentError, match="a snapshot is of modules and tables, and not of"):
        await ps.snapshot("monday", [items, await ps.optimizer(optim.SGD, net.parameters(), lr=1.0)])
    pinned = await ps.snapshot("monday", [net])
    both: list[Any] = [items, net]
    for objects in (both, both[:1]):
        with pytest.raises(tc.errors.NameConflictError, match=r"a snapshot 'monday' of net already: .*\.remove\(\)"):
            await ps.snapshot("monday", objects)
    with pytest.raises(KeyError, match="snapshot 'monday' has not one object 'items'; it has net"):
        pinned[items]
    with pytest.raises(tc.errors.InvalidArgumentError, match="a snapshot is named by a text, not 3"):
        await ps.snapshot(3, [net])  # type: ignore[arg-type]
    assert {each.name for each in (await ps.status()).objects} >= {"items", "net", "net@monday"}
    assert "items@monday" not in {each.name for each in (await ps.status()).objects}


async def test_a_module_looks_up_in_the_table_as_it_was(tmp_path: Path) -> None:
    async with Owner(tmp_path, modules=[table_models]) as owner, tc.connect(owner.address) as ps:
        items = await ps.table("items", 4, tc.tables.SGD(1.0), init=tc.tables.Normal(1.0))
        scored = await ps.module("tests.table_models.Scored", items, 4, name="scored")
        opt = await ps.optimizer(optim.SGD, [*scored.parameters(), items], lr=0.1)

        async def one_pass() -> None:
            async with ps.context() as ctx:
                await ctx.backward((await scored(IDS)).square().sum(), step=opt)

        await one_pass()
        more = torch.cat([IDS, torch.tensor([1000, 1001, 5])])
        before = await scored.read(more)
        with pytest.raises(tc.errors.InvalidArgumentError, match="in table 'items', which has to be in the snapshot"):
            await ps.snapshot("monday", [scored])
        pinned = await ps.snapshot("monday", [scored, items])
        await one_pass()
        await items.upsert(torch.tensor([1000]), torch.zeros(1, 4))
        await items.remove(IDS[:30])
        assert torch.equal(await pinned[scored].read(more), before)
        assert not torch.equal(await scored.read(more), before)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
async def test_bags_of_a_pinned_table_have_its_rows(tmp_path: Path, mode: str) -> None:
    async with Owner(tmp_path, modules=[table_models]) as owner, tc.connect(owner.address) as ps:
        items = await ps.table("items", 4, init=tc.tables.Normal(1.0), admit=tc.tables.AfterSightings(2, default=0.5))
        await items.upsert(IDS[:50], torch.randn(50, 4))
        pooling = await ps.module("tests.table_models.Pooling", items, name="pooling")
        ids, offsets = IDS[45:55], torch.tensor([0, 3, 3, 8])
        before = await pooling.read(ids, offsets, mode)
        pinned = await ps.snapshot("monday", [pooling, items])
        await items.clear()
        torch.testing.assert_close(await pinned[pooling].read(ids, offsets, mode), before)


async def test_a_module_with_a_table_over_owners_is_refused(group: Group) -> None:
    items = await group.ps.table("items", 4)
    scored = await group.ps.module("tests.table_models.Scored", items, 4, name="scored")
    with pytest.raises(tc.errors.InvalidArgumentError, match="in table 'items', which has rows on other owners"):
        await group.ps.snapshot("monday", [scored, items])
    assert not [each for each in (await group.ps.status()).objects if each.snapshot]


async def test_what_is_in_a_snapshot_cannot_be_changed(ps: tc.Client) -> None:
    net, _ = await net_of(ps)
    pinned = await ps.snapshot("monday", [net])
    handle = await ps.attach("net@monday")
    assert set(handle.methods) == {"describe", "read", "state"} and not isinstance(handle, tc.RemoteModule)
    state = await pinned[net].state_dict()
    for each in state.values():
        each.zero_()
    found = await pinned[net].state_dict()
    assert found["weight"].abs().sum() > 0


async def test_steps_do_not_wait_for_long_for_a_module_that_is_in_use(tmp_path: Path) -> None:
    async with Owner(tmp_path, modules=[snapshot_models]) as owner, tc.connect(owner.address) as ps:
        slow = await ps.module("tests.snapshot_models.Waiting", name="slow")
        net, opt = await net_of(ps)
        items = await ps.table("items", 4)
        calling = asyncio.ensure_future(slow(X))
        await asyncio.to_thread(snapshot_models.Waiting.began.wait, 60)
        pinning = asyncio.ensure_future(ps.snapshot("monday", [slow, net, items]))
        for _ in range(20):
            await one_pass(ps, net, opt)
        assert not pinning.done()
        snapshot_models.Waiting.ends.set()
        await calling
        pinned = await pinning
        assert (await pinned[net].state_dict())["num_batches_tracked"] == 20


async def test_two_snapshots_of_a_name_do_not_become_one(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, _ = trio
    (first, _), (second, _) = await net_of(ps, "first", "ps0"), await net_of(ps, "second", "ps1")
    async with tc.connect(ps.sessions["ps0"].address) as one, tc.connect(ps.sessions["ps1"].address) as other:
        of_one = await one.snapshot("monday", [(await net_of(one, "first"))[0]])
        of_other = await other.snapshot("monday", [(await net_of(other, "second"))[0]])
        with pytest.raises(tc.errors.NameConflictError, match="several programs have made a snapshot 'monday'"):
            await ps.snapshot("monday")
        with pytest.raises(tc.errors.NameConflictError):
            await ps.snapshot("monday", [first, second])
        await of_one.remove()
        assert (await of_other[second].read(X)).shape == X.shape


async def test_a_deleted_table_counts_for_its_snapshot(ps: tc.Client) -> None:
    items = await ps.table("items", 64)
    await items.upsert(torch.arange(1000), torch.randn(1000, 64))
    pinned = await ps.snapshot("monday", [items])
    assert sum((await pinned.nbytes()).values()) < 100_000
    await items.delete()
    assert sum((await pinned.nbytes()).values()) > 256_000
    assert (await pinned["items"].read(torch.arange(1000))).found.all()


async def test_what_snapshots_have_counts_for_the_tables_of_an_owner() -> None:
    shard = TableShard(64, tc.tables.SGD(0.1))
    budget = TableBudget("ps0", 400_000)
    shard.count_in(budget, "items")
    shard.put({"ids": torch.arange(1000), "values": torch.ones(1000, 64)})
    used = budget.nbytes
    pinned = PinnedRows(shard)
    shard.clear()
    assert budget.nbytes >= used
    with pytest.raises(tc.errors.TooLargeError, match="remove snapshots"):
        shard.put({"ids": torch.arange(1000), "values": torch.ones(1000, 64)})
    del pinned
    gc.collect()
    shard.put({"ids": torch.arange(1000), "values": torch.ones(1000, 64)})


@pytest.mark.parametrize("durability", ["always", "off"])
async def test_a_snapshot_ends_with_its_owner(tmp_path: Path, durability: str) -> None:
    async with Owner(tmp_path, durability=durability) as owner, tc.connect(owner.address) as ps:
        items = await ps.table("items", 4)
        net, opt = await net_of(ps)
        await train(ps, items, IDS)
        pinned = await ps.snapshot("monday", [net, items])
        scores = await pinned[net].read(X)
        await asyncio.to_thread(owner.server.engine.checkpoints.write)
        await one_pass(ps, net, opt)
        assert torch.equal(await pinned[net].read(X), scores)
        await owner.restart()
        with pytest.raises(tc.errors.StaleHandleError):
            await pinned[net].read(X)
        with pytest.raises(tc.errors.UnknownNameError, match="there is no snapshot 'monday'"):
            await ps.snapshot("monday")
        again = await ps.snapshot("monday", [net, await ps.table("items")])
        assert torch.equal(await again[net].read(X), await net.read(X))


async def test_an_owner_that_is_away_holds_up_only_who_needs_it(tmp_path: Path) -> None:
    async with (
        Owner(tmp_path / "0") as there,
        Owner(tmp_path / "1", "ps1") as away,
        tc.connect(there.address, away.address) as ps,
    ):
        net, _ = await net_of(ps, "net", "ps0")
        await away.server.stop()
        await until(lambda: ps.sessions["ps1"].state != "connected")
        async with asyncio.timeout(20):
            await ps.snapshot("monday", [net])
            found = await ps.snapshot("monday")
            assert torch.equal(await found[net].read(X), await net.read(X))
            await found.remove()
            with pytest.raises(tc.errors.StaleHandleError):
                await found[net].read(X)
        assert ps.sessions["ps1"].state != "connected", "it was away all the time"
        await away.start()


async def test_a_lost_part_is_told(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, _ = trio
    first, _ = await net_of(ps, "first", "ps0")
    second, _ = await net_of(ps, "second", "ps1")
    await ps.snapshot("monday", [first, second])
    await ps.delete("second@monday", "ps1")
    with pytest.raises(tc.errors.UnknownNameError, match="has lost 'second', because owner 'ps1' was started again"):
        await ps.snapshot("monday")


async def test_pinned_rows_that_are_too_many_are_refused(ps: tc.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    items = await ps.table("items", 4)
    await train(ps, items, IDS)
    pinned = await ps.snapshot("monday", [items])
    monkeypatch.setattr(answers, "MOST_READ", 1)
    with pytest.raises(tc.errors.TooLargeError, match="read fewer at once"):
        await pinned[items].read(IDS)
