"""Exports of groups whose owners leave and join."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ps_reader
import trainer_client as tc
from ps_reader import layout
from tests.integration.restarting import Owner
from tests.integration.tables.exports import as_owned, as_read, brought, exporting
from tests.integration.tables.moving import table_of, train
from tests.owner_groups import OwnerGroup
from tests.ports import ReservedPort
from tests.waiting import until
from trainer_client.serving import exporter
from trainer_client.serving.exported_table import ExportedTable
from trainer_client.serving.live_objects import LiveObjects

IDS = torch.arange(-40, 60)


@pytest.fixture
async def group() -> AsyncIterator[OwnerGroup]:
    """A group of two owners, of which the first keeps the directory."""
    async with OwnerGroup() as group:
        await group.enter("ps0")
        await group.enter("ps1")
        yield group


@pytest.fixture
async def ps(group: OwnerGroup) -> AsyncIterator[tc.Client]:
    async with tc.connect(directory=group.directory) as client:
        yield client


def hide(group: OwnerGroup, name: str) -> None:
    """Has the directory forget an owner, as while it is started again."""
    group.keeper.engine.directory.leave(group.agents[name].client.trainer)


def show(group: OwnerGroup, name: str) -> None:
    agent = group.agents[name]
    group.keeper.engine.directory.enter(agent.client.trainer, name, agent.server.address, is_owner=True)


@pytest.mark.parametrize(
    ("kind", "named"), [("table", True), ("table of one owner", False), ("module", False), ("module", True)]
)
async def test_a_new_version_waits_for_an_owner_that_is_not_in_the_directory(
    group: OwnerGroup, ps: tc.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, named: bool
) -> None:
    await ps.module(nn.Linear, 2, 1, name="other", owner="ps0")
    chosen = {}
    if kind == "module":
        await ps.module(nn.Linear, 2, 1, name="items", owner="ps1")
        chosen = {"modules": ["items", "other"]}
    else:
        items = await table_of(ps, "items", owners=["ps0", "ps1"] if kind == "table" else ["ps1"])
        await train(ps, items, IDS)
        chosen = {"tables": ["items"], "modules": ["other"]}
    chosen = chosen if named else {}
    await ps.export(tmp_path, **chosen)
    hide(group, "ps1")
    async with tc.connect(directory=group.directory) as other:
        assert other.owners == ["ps0"]
        with pytest.raises(tc.errors.UnavailableError, match="ps1"):
            await other.export(tmp_path, **chosen)
        async with exporting(other, tmp_path, **chosen):
            with caplog.at_level(logging.WARNING, "trainer_client"):
                await until(lambda: "the export asks for its objects again" in caplog.text, 0.01)
            with ps_reader.open(tmp_path) as reader:
                assert reader.current.number == 1
            show(group, "ps1")
            if kind == "module":
                assert (await brought(tmp_path)).modules == ["items", "other"]
            else:
                await train(ps, items, IDS[:9])
                assert as_read(await brought(tmp_path)) == await as_owned(items)
    assert "was deleted" not in caplog.text


async def test_an_export_that_waits_for_an_owner_does_not_open_its_files_again_and_again(
    group: OwnerGroup, ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await train(ps, await table_of(ps, "items", owners=["ps0"]), IDS)
    await ps.module(nn.Linear, 2, 1, name="net", owner="ps1")
    await ps.export(tmp_path)
    hide(group, "ps1")
    opened, looked = [], []
    begin, find = ExportedTable.__init__, LiveObjects.find_module
    monkeypatch.setattr(ExportedTable, "__init__", lambda *args: (opened.append(1), begin(*args))[1])
    monkeypatch.setattr(LiveObjects, "find_module", lambda *args: (looked.append(1), find(*args))[1])
    async with tc.connect(directory=group.directory) as other, exporting(other, tmp_path):
        await until(lambda: len(looked) >= 5, 0.01)
        assert not opened
        show(group, "ps1")
        assert (await brought(tmp_path)).modules == ["net"]
        assert len(opened) == 1


async def test_what_was_deleted_while_no_export_went_on_is_left_out(ps: tc.Client, tmp_path: Path) -> None:
    for name, owner in ("net", "ps0"), ("gone", "ps1"):
        await ps.module(nn.Linear, 2, 1, name=name, owner=owner)
    await table_of(ps, "items", owners=["ps0", "ps1"])
    await ps.export(tmp_path)
    await ps.delete("gone", owner="ps1")
    await ps.delete("items")
    await ps.export(tmp_path)
    with ps_reader.open(tmp_path) as reader:
        assert reader.current.modules == ["net"] and not reader.current.tables


async def test_what_is_made_on_an_owner_that_joins_later_is_exported_too(
    group: OwnerGroup, ps: tc.Client, tmp_path: Path
) -> None:
    async with tc.connect(directory=group.directory) as other, exporting(other, tmp_path):
        await brought(tmp_path)
        await group.enter("ps2")
        await ps.find_owners(3)
        items = await table_of(ps, "items", owners=["ps2"])
        await train(ps, items, IDS)
        await ps.module(nn.Linear, 2, 1, name="net", owner="ps2")
        version = await brought(tmp_path)
        assert as_read(version) == await as_owned(items) and version.modules == ["net"]


@pytest.mark.parametrize("kind", ["table", "module"])
@pytest.mark.parametrize("named", [False, True], ids=["all", "named"])
async def test_an_export_ends_when_all_owners_of_what_was_deleted_have_left_for_long(
    group: OwnerGroup, ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, named: bool
) -> None:
    await ps.module(nn.Linear, 2, 1, name="other", owner="ps0")
    if kind == "table":
        await train(ps, await table_of(ps, "items", owners=["ps1"]), IDS)
    else:
        await ps.module(nn.Linear, 2, 1, name="items", owner="ps1")
    chosen: dict[str, Any] = {f"{kind}s": ["items"]} if named else {}
    await ps.export(tmp_path, **chosen)
    await ps.delete("items", owner="ps1")
    await group.agents["ps1"].leave(0.0)
    monkeypatch.setattr(exporter, "_GONE_SECONDS", 0.05)
    async with tc.connect(directory=group.directory) as other, asyncio.timeout(60):
        with pytest.raises(
            tc.errors.UnavailableError, match=f"{kind} 'items' was exported from ps1, and is on no owner"
        ):
            await other.export(tmp_path, follow=True, every=0.01, **chosen)


async def test_an_owner_that_has_left_for_good_is_not_waited_for(
    group: OwnerGroup, ps: tc.Client, tmp_path: Path
) -> None:
    items = await table_of(ps, "items", owners=["ps0", "ps1"])
    await train(ps, items, IDS)
    async with tc.connect(directory=group.directory, timeout=2) as other, exporting(other, tmp_path):
        await brought(tmp_path)
        await ps.rebalance([items], owners=["ps0"])
        await brought(tmp_path)
        await group.agents["ps1"].leave(0.0)
        await ps.find_owners()
        for number in range(2):
            await train(ps, items, IDS[number:])
            assert as_read(await brought(tmp_path)) == await as_owned(items)
        assert other.owners == ["ps0"]


async def test_without_a_directory_the_log_says_that_an_owner_which_has_left_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Owner(tmp_path / "ps0") as one,
        Owner(tmp_path / "ps1", "ps1") as other,
        tc.connect(one.address, other.address, timeout=0.2) as ps,
        exporting(ps, tmp_path / "out"),
    ):
        await brought(tmp_path / "out")
        with caplog.at_level(logging.WARNING, "trainer_client"):
            await other.server.stop()
            await until(lambda: "if it has left for good, begin the export again without it" in caplog.text, 0.01)


async def test_a_module_that_was_moved_from_an_owner_which_leaves_is_exported_on(tmp_path: Path) -> None:
    with_log = {"durability": "interval:0.01"}
    async with (
        Owner(tmp_path / "ps0", **with_log) as one,
        Owner(tmp_path / "ps1", "ps1", **with_log) as other,
        tc.connect(one.address, other.address) as ps,
    ):
        net = await ps.module(nn.Linear, 2, 1, name="net", owner="ps1")
        async with exporting(ps, tmp_path / "out"):
            await brought(tmp_path / "out")
            await ps.drain("ps1", to="ps0")
            version = await brought(tmp_path / "out")
            assert version.modules == ["net"] and net.owner == "ps0"
            assert layout.read_manifest(tmp_path / "out", version.number).modules["net"].owner == "ps0"
        await ps.export(tmp_path / "once")
        with ps_reader.open(tmp_path / "once") as reader:
            assert reader.current.modules == ["net"]


async def test_an_export_goes_on_when_its_directory_has_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with OwnerGroup() as group:
        with ReservedPort() as port:
            await group.enter("keeper", listen=port.address)
            member = await group.enter("ps1")
            async with (
                tc.connect(member.server.address) as ps,
                tc.connect(directory=port.address, reconnect_timeout=0.05) as other,
                exporting(other, tmp_path),
            ):
                items = await table_of(ps, "items", owners=["ps1"])
                await train(ps, items, IDS)
                await brought(tmp_path)
                await group.keeper.server.stop()
                await until(lambda: "the export asks for its objects again" in caplog.text, 0.01)
                await group.enter("keeper", listen=port.address)
                await train(ps, items, IDS)
                assert as_read(await brought(tmp_path)) == await as_owned(items)
