"""Exports that follow owners, and what a reader has of them, also when owners and exporters are killed."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ps_reader
import trainer_client as tc
from ps_reader.layout import Manifest
from ps_service.tables import feed, reading
from tests.integration.tables.exports import as_owned, as_read, brought, exporting
from tests.integration.tables.moving import table_of, train
from tests.owner_groups import OwnerGroup
from tests.waiting import pauses
from trainer_client.serving import live_objects
from trainer_client.serving.export_folder import Folder, twin_of

IDS = torch.arange(-40, 60)


async def test_an_export_follows_rows_to_an_owner_that_joins_later(tmp_path: Path) -> None:
    async with OwnerGroup() as group:
        await group.enter("directory")
        async with tc.connect(directory=group.directory) as one, tc.connect(directory=group.directory) as ps:
            items = await ps.table("items", 4)
            await train(ps, items, IDS)
            async with exporting(one, tmp_path / "out"):
                assert as_read(await brought(tmp_path / "out")) == await as_owned(items)
                await group.enter("ps1")
                await ps.find_owners()
                await ps.rebalance([items])
                await train(ps, items, IDS)
                assert len(items.owners) == 2
                assert as_read(await brought(tmp_path / "out")) == await as_owned(items)
                assert len(one.owners) == 2


async def test_two_modules_of_one_name_are_not_exported_as_one(pair: tc.Client, tmp_path: Path) -> None:
    for owner in pair.owners:
        await pair.module(nn.Linear, 2, 2, name="net", owner=owner)
    for names in (None, ["net"]):
        with pytest.raises(tc.errors.InvalidArgumentError, match="ps0 and ps1 have a module 'net' each"):
            await pair.export(tmp_path / "out", modules=names)


async def test_all_tables_and_modules_are_exported_once(pair: tc.Client, tmp_path: Path) -> None:
    items = await pair.table("items", 4)
    await train(pair, items, IDS)
    net = await pair.module(nn.BatchNorm1d, 3, name="a net/of mine", owner=pair.owners[1])
    half = await pair.module(nn.Linear, 3, 2, dtype=torch.bfloat16, name="half")
    await pair.export(tmp_path / "out")
    with ps_reader.open(tmp_path / "out") as reader:
        version = reader.current
        assert as_read(version) == await as_owned(items) and version.modules == ["a net/of mine", "half"]
        for name, handle in (("a net/of mine", net), ("half", half)):
            state = await handle.state_dict()
            read = version.state_dict(name)
            assert list(read) == sorted(state) or set(read) == set(state)
            for key, value in state.items():
                assert torch.equal(torch.tensor(read[key]), value.float() if value.is_floating_point() else value)
        with pytest.raises(ps_reader.ExportError, match="has no module 'net'; it has a net/of mine, half"):
            version.state_dict("net")
        assert 0 <= reader.age < 60


async def test_what_is_trained_arrives(pair: tc.Client, tmp_path: Path) -> None:
    items = await table_of(pair, "items", owners=pair.owners)
    net = await pair.module(nn.Linear, 2, 2, name="net")
    opt = await pair.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    async with exporting(pair, tmp_path):
        for number in range(4):
            await train(pair, items, IDS[number : number + 50])
            async with pair.context() as ctx:
                await ctx.backward((await net(torch.ones(1, 2))).sum(), step=opt)
            await items.remove(IDS[number : number + 2])
            version = await brought(tmp_path)
            assert as_read(version) == await as_owned(items)
            weight = (await net.state_dict())["weight"]
            assert torch.equal(torch.tensor(version.state_dict("net")["weight"]), weight)
        await items.clear()
        assert as_read(await brought(tmp_path)) == {}


async def test_an_export_of_everything_leaves_out_nothing_in_silence(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_objects, "_MOST", 3)
    await ps.module(nn.Linear, 1, 1)
    for number in range(3):
        await ps.export(tmp_path)
        await ps.module(nn.Linear, 1, 1, name=f"net {number}")
    with pytest.raises(tc.errors.InvalidArgumentError, match="ps0 has 3 or more tables or other objects"):
        await ps.export(tmp_path)


async def test_a_table_and_a_module_of_one_name_are_both_exported(pair: tc.Client, tmp_path: Path) -> None:
    one, other = pair.owners
    items = await pair.table("items", 4, owners=[one])
    await items.upsert(IDS, torch.randn(len(IDS), 4))
    net = await pair.module(nn.Linear, 2, 1, name="items", owner=other)
    await pair.export(tmp_path)
    with ps_reader.open(tmp_path) as reader:
        assert as_read(reader.current) == await as_owned(items)
        weight = (await net.state_dict())["weight"]
        assert torch.equal(torch.tensor(reader.current.state_dict("items")["weight"]), weight)


async def test_named_tables_and_modules_alone_are_exported(pair: tc.Client, tmp_path: Path) -> None:
    for name in ("one", "other"):
        await pair.table(name, 4)
        await pair.module(nn.Linear, 1, 1, name=f"net {name}")
    await pair.export(tmp_path, tables=["one"], modules=["net other"])
    with ps_reader.open(tmp_path) as reader:
        assert list(reader.current.tables) == ["one"] and reader.current.modules == ["net other"]
    await pair.export(tmp_path, tables=["other"])
    with ps_reader.open(tmp_path) as reader:
        assert list(reader.current.tables) == ["other"] and reader.current.modules == []
    for wrong in ({"tables": ["none"]}, {"modules": ["none"]}):
        with pytest.raises(tc.errors.UnknownNameError, match="none"):
            await pair.export(tmp_path, **wrong)
    with pytest.raises(tc.errors.InvalidArgumentError, match="no module that could be exported"):
        await pair.export(tmp_path, modules=["one.optimizer"])
    for bad in ({"every": -1}, {"keep": 0}):
        with pytest.raises(tc.errors.InvalidArgumentError):
            await pair.export(tmp_path, **bad)


async def test_a_later_export_goes_on_with_what_has_changed(pair: tc.Client, tmp_path: Path) -> None:
    items = await table_of(pair, "items", owners=pair.owners)
    await train(pair, items, IDS)
    await pair.export(tmp_path)
    await train(pair, items, IDS[:3])
    written: list[Manifest] = []
    await pair.export(tmp_path, when_written=written.append)
    files = written[0].tables["items"]
    assert written[0].version == 2 and files.base < len(files.parts), "only what has changed was written"
    with ps_reader.open(tmp_path) as reader:
        assert as_read(reader.current) == await as_owned(items)


async def test_rows_are_rounded_on_their_way(ps: tc.Client, tmp_path: Path) -> None:
    items = await ps.table("items", 4)
    await items.upsert(IDS, torch.randn(len(IDS), 4))
    await ps.export(tmp_path, compress=tc.codecs.BF16())
    with ps_reader.open(tmp_path) as reader:
        values, _ = reader.current.tables["items"].look_up(IDS.numpy())
    exact = (await items.read(IDS)).values
    assert torch.equal(torch.from_numpy(values), exact.bfloat16().float())


async def test_an_export_follows_rows_that_move(trio: tuple[tc.Client, tc.Client], tmp_path: Path) -> None:
    ps, other = trio
    items = await table_of(ps, "items")
    await train(ps, items, IDS)
    async with exporting(other, tmp_path):
        await brought(tmp_path)
        await ps.rebalance([items])
        await train(ps, items, IDS)
        assert as_read(await brought(tmp_path)) == await as_owned(items)


async def test_parts_are_written_as_parquet_too(ps: tc.Client, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    items = await ps.table("items", 4)
    await items.upsert(IDS, torch.randn(len(IDS), 4))
    await ps.export(tmp_path, parquet=True, keep=1)
    await items.remove(IDS[:3])
    await items.upsert(IDS[3:5], torch.randn(2, 4))
    written: list[Manifest] = []
    await ps.export(tmp_path, parquet=True, keep=1, when_written=written.append)
    rows: dict[int, list[float]] = {}
    for part in written[0].tables["items"].parts:
        table = parquet.read_table(twin_of(tmp_path / part))
        for id, removed, values in zip(*(table[name].to_pylist() for name in ("id", "removed", "values")), strict=True):
            assert (values is None) == removed
            if removed:
                rows.pop(id, None)
            else:
                rows[id] = values
    assert rows.keys() == set(IDS[3:].tolist())
    exact = (await items.read(torch.tensor(list(rows)))).values
    assert torch.equal(torch.tensor(list(rows.values())), exact)
    there = {name.removesuffix(".parquet") for name in os.listdir(tmp_path) if name.endswith(".parquet")}
    assert there == {Path(each).stem for each in written[0].tables["items"].parts}


async def test_what_is_deleted_is_left_out_unless_it_was_named(ps: tc.Client, tmp_path: Path) -> None:
    items = await table_of(ps, "items", owners=["ps0"])
    await ps.table("other", 4)
    await ps.module(nn.Linear, 1, 1, name="net")
    async with exporting(ps, tmp_path / "all"), exporting(ps, tmp_path / "named", tables=["items", "other"]):
        await brought(tmp_path / "all")
        await brought(tmp_path / "named")
        await ps.delete("other")
        await ps.delete("net")
        await train(ps, items, IDS)
        version = await brought(tmp_path / "all")
        assert as_read(version) == await as_owned(items) and list(version.tables) == ["items"] and not version.modules
        other = await ps.table("other", 8)
        await other.upsert(IDS, torch.randn(len(IDS), 8))
        version = await brought(tmp_path / "named")
        assert as_read(version, "other") == await as_owned(other)


async def test_a_table_is_found_that_is_made_while_it_is_looked_for(ps: tc.Client) -> None:
    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(ps, name)

        async def table(self, name: str) -> tc.Table:
            try:
                return await ps.table(name)
            except tc.errors.UnknownNameError:
                await ps.table(name, 4)
                raise

    assert (await live_objects.LiveObjects(Late(), in_group=False).find_table("items")).dim == 4  # type: ignore[arg-type]


async def test_what_the_state_of_a_module_has_besides_is_exported_when_it_alone_changes(
    ps: tc.Client, tmp_path: Path
) -> None:
    net = await ps.module("tests.hosted_models.WithExtraState", name="net")
    async with exporting(ps, tmp_path):
        for number in (3, 4):
            await net.set_extra(number)
            assert (await brought(tmp_path)).state_dict("net")["_extra_state"].tolist() == [number]


async def test_rows_that_were_rounded_are_written_anew_without_rounding(ps: tc.Client, tmp_path: Path) -> None:
    items = await ps.table("items", 4)
    await items.upsert(IDS, torch.randn(len(IDS), 4))
    await ps.export(tmp_path, compress=tc.codecs.BF16())
    await ps.export(tmp_path)
    with ps_reader.open(tmp_path) as reader:
        assert as_read(reader.current) == await as_owned(items)


@pytest.mark.parametrize("damage", ["cut", "missing", "source"])
async def test_all_rows_are_written_anew_where_files_are_damaged(
    ps: tc.Client, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    items = await ps.table("items", 4)
    await items.upsert(IDS, torch.randn(len(IDS), 4))
    await ps.export(tmp_path)
    manifest = tmp_path / "version-1.json"
    plain = json.loads(manifest.read_text())
    part = tmp_path / plain["tables"]["items"]["parts"][0]
    if damage == "cut":
        part.write_bytes(part.read_bytes()[:30])
    elif damage == "missing":
        part.unlink()
    else:
        plain["tables"]["items"]["source"] = {"zz": 5}
        manifest.write_text(json.dumps(plain))
    await ps.export(tmp_path)
    with ps_reader.open(tmp_path) as reader:
        assert as_read(reader.current) == await as_owned(items)
    assert "all rows of table 'items' are exported anew" in caplog.text


async def test_an_export_that_is_cancelled_at_any_moment_lets_others_write(ps: tc.Client, tmp_path: Path) -> None:
    await ps.table("items", 4)
    for number in range(15):
        going_on = ps.export(tmp_path, follow=True, every=0.01)
        await asyncio.sleep(number * 0.002)
        going_on.cancel()
        with suppress(tc.errors.CancelledCallError, tc.errors.InvalidArgumentError):
            await going_on  # the one before may have the folder for a moment
    assert await eventually(ps, tmp_path)


def test_no_other_program_writes_while_a_thread_of_a_cancelled_export_does(tmp_path: Path) -> None:
    folder, goes_on, writes = Folder(tmp_path, 3), threading.Event(), threading.Event()
    folder.open()
    save = folder._save

    def slow(*args: Any, **kwargs: Any) -> None:
        writes.set()
        goes_on.wait(60)
        save(*args, **kwargs)

    folder._save = slow
    writing = threading.Thread(target=folder.write, args=("net", {"weight": torch.ones(2)}))
    closing = threading.Thread(target=folder.close)
    writing.start()
    writes.wait(60)
    closing.start()
    with pytest.raises(tc.errors.InvalidArgumentError, match="another program writes"):
        Folder(tmp_path, 3).open()
    goes_on.set()
    writing.join()
    closing.join()
    for late in (lambda: folder.write("net", {}), lambda: folder.tell(1, 1.0), lambda: folder.remove(["a"])):
        with pytest.raises(OSError, match="this export has ended"):
            late()
    Folder(tmp_path, 3).open()


async def eventually(ps: tc.Client, path: Path) -> bool:
    """Exports, as soon as no other program does."""
    async with asyncio.timeout(60):
        for pause in pauses():
            with suppress(tc.errors.InvalidArgumentError):
                await ps.export(path)
                return True
            await asyncio.sleep(pause)
    return False


async def test_a_table_that_changes_faster_than_it_is_read_is_exported(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_IDS", 50)
    monkeypatch.setattr(reading, "PIECE_BYTES", 500)
    items = await ps.table("items", 4)
    many = torch.arange(1000)
    await items.upsert(many, torch.randn(1000, 4))
    async with exporting(ps, tmp_path):
        for _ in range(20):
            await items.upsert(many, torch.randn(1000, 4))
        assert as_read(await brought(tmp_path)) == await as_owned(items)


async def test_what_is_made_while_an_export_follows_is_exported_too(tmp_path: Path) -> None:
    async with tc.local(owners=2) as ps, exporting(ps, tmp_path):
        assert not (await brought(tmp_path)).tables
        net = await ps.module(nn.Linear, 2, 1, name="net")
        for optimizer in (tc.tables.LazyAdam(0.1), tc.tables.SGD(0.1)):
            items = await table_of(ps, "items", optimizer)
            await train(ps, items, IDS)
            version = await brought(tmp_path)
            assert as_read(version) == await as_owned(items)
            assert version.modules == [net.name]
            await ps.delete("items")
            assert not (await brought(tmp_path)).tables
        for owner in ("ps0", "ps1"):
            await ps.module(nn.Linear, 2, 1, name="twice", owner=owner)
        assert (await brought(tmp_path)).modules in ([net.name], [net.name, "twice"]), "the export goes on"
        await ps.module(nn.Linear, 2, 1, name="later")
        assert "later" in (await brought(tmp_path)).modules


async def test_one_object_is_named_by_its_name_or_a_handle_alone_or_in_a_list(tmp_path: Path) -> None:
    async with tc.local(owners=2) as ps:
        items, _ = await table_of(ps, "items"), await table_of(ps, "others")
        net = await ps.module(nn.Linear, 2, 1, name="net")
        for place, (tables, modules) in enumerate(
            ((items, net), ("items", "net"), ([items], [net]), (["items"], ["net"]))
        ):
            await ps.export(tmp_path / f"{place}", tables=tables, modules=modules)
            with ps_reader.open(tmp_path / f"{place}") as reader:
                assert (list(reader.current.tables), list(reader.current.modules)) == (["items"], ["net"])
        assert [each.name for each in (await ps.snapshot("one", items)).objects] == ["items"]
        (moved,) = await ps.rebalance("items", owners=items.owners[0])
        assert (moved.table, moved.target) == ("items", items.owners[0])
        with pytest.raises(tc.errors.InvalidArgumentError, match="a handle of one that has a name, not 3"):
            await ps.export(tmp_path / "none", tables=[3])
