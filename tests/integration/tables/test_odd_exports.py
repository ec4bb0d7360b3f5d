"""Exports of objects with odd names, dtypes and states, and of such that come and go."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ps_reader
import trainer_client as tc
from ps_service.tables import reading
from tests import export_models
from tests.integration.restarting import Owner
from tests.integration.tables.exports import as_owned, as_read, brought, exporting
from tests.waiting import until
from trainer_client.serving import exported_table
from trainer_client.serving.export_folder import Folder, twin_of
from trainer_client.serving.exported_table import ExportedTable
from trainer_client.serving.live_objects import LiveObjects

IDS = torch.arange(8)


def files_in(path: Path) -> set[str]:
    return {each.name for each in path.glob("*.safetensors")}


@pytest.mark.parametrize("name", [".hidden", "字" * 80, "a/b c", "-"], ids=["hidden", "long", "path", "dash"])
async def test_names_may_be_odd(ps: tc.Client, tmp_path: Path, name: str) -> None:
    items = await ps.table(name, 2)
    await items.upsert(IDS, torch.randn(8, 2))
    net = await ps.module(nn.Linear, 2, 1, name=f"{name}.net")
    await ps.export(tmp_path)
    with ps_reader.open(tmp_path) as reader:
        assert as_read(reader.current, name) == await as_owned(items)
        weight = (await net.state_dict())["weight"]
        assert torch.equal(torch.tensor(reader.current.state_dict(net.name)["weight"]), weight)


async def test_a_dtype_that_numpy_or_the_format_does_not_have_concerns_its_module_alone(tmp_path: Path) -> None:
    async with Owner(tmp_path / "data", modules=[export_models]) as owner, tc.connect(owner.address) as ps:
        items = await ps.table("items", 2)
        async with exporting(ps, tmp_path / "out"):
            await brought(tmp_path / "out")
            for dtype in ("float8_e4m3fn", "complex64", "complex128"):
                await ps.module("tests.export_models.WithBuffer", dtype, name=dtype)
            await items.upsert(IDS, torch.randn(8, 2))
            version = await brought(tmp_path / "out")
            assert as_read(version) == await as_owned(items)
            assert version.modules == ["complex64", "float8_e4m3fn"]
            assert version.state_dict("complex64")["buffer"].tolist() == [1 + 0j, 1 + 0j]
            with pytest.raises(ps_reader.ExportError, match="buffer of module 'float8_e4m3fn' is of the dtype F8_E4M3"):
                version.state_dict("float8_e4m3fn")
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"'complex128' has tensors of torch\.complex128"):
            await ps.export(tmp_path / "named", modules=["complex128"])


async def test_a_state_besides_parameters_is_followed_by_its_bits(tmp_path: Path) -> None:
    async with Owner(tmp_path / "data", modules=[export_models]) as owner, tc.connect(owner.address) as ps:
        net = await ps.module("tests.export_models.WithState", name="net")
        async with exporting(ps, tmp_path / "out"):
            assert "_extra_state" not in (await brought(tmp_path / "out")).state_dict("net")
            for value in (0.0, -0.0, float("nan"), 1.0):
                await net.put(value)
                version = await brought(tmp_path / "out")
                assert version.state_dict("net")["_extra_state"].tobytes() == np.float32(value).tobytes()
            await net.put(float("nan"))
            number = (await brought(tmp_path / "out")).number
            for _ in range(3):
                assert (await brought(tmp_path / "out")).number == number, "NaN is what it was"


async def test_a_state_that_cannot_be_had_leaves_out_its_module_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with (
        Owner(tmp_path / "data", modules=[export_models]) as owner,
        tc.connect(owner.address) as ps,
        exporting(ps, out),
    ):
        await brought(out)
        await ps.module("tests.export_models.WithoutState", name="bad")
        await ps.module(nn.Linear, 2, 1, name="good")
        assert (await brought(out)).modules == ["good"]


async def test_a_module_that_does_not_give_its_state_for_a_while_stays_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    async with Owner(tmp_path / "data", modules=[export_models]) as owner, tc.connect(owner.address) as ps:
        net = await ps.module("tests.export_models.WithMoods", name="net")
        items = await ps.table("items", 2)
        async with exporting(ps, out):
            assert (await brought(out)).state_dict("net")["weight"].tolist() == [1.0]
            await net.put(True)
            for _ in range(3):
                await items.upsert(IDS, torch.randn(8, 2))
                version = await brought(out)
                assert as_read(version) == await as_owned(items)
                assert version.state_dict("net")["weight"].tolist() == [1.0]
            await net.put(False)
            await net.load_state_dict({"weight": torch.zeros(1), "_extra_state": torch.ones(1)})
            assert (await brought(out)).state_dict("net")["weight"].tolist() == [0.0]
    assert caplog.text.count("'net' stays as it was") == 1


async def test_a_table_that_cannot_be_taken_for_a_while_stays_as_it_was(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    items, other = await ps.table("items", 2), await ps.table("other", 2)
    failing = False

    def take(self: ExportedTable, change: tc.tables.Change) -> bool:
        if failing and self._name == "items" and change.version is not None:
            raise tc.errors.InternalError("not now")
        return before(self, change)

    before = ExportedTable.take
    monkeypatch.setattr(ExportedTable, "take", take)
    monkeypatch.setattr(exported_table, "PART_BYTES", 1)
    await items.upsert(IDS, torch.randn(8, 2))
    async with exporting(ps, tmp_path):
        first = as_read(await brought(tmp_path))
        failing = True
        for number in range(3):
            if number == 1:
                await items.clear()
            await items.upsert(IDS[number:], torch.randn(8 - number, 2))
            await other.upsert(IDS, torch.randn(8, 2))
            version = await brought(tmp_path)
            assert as_read(version, "other") == await as_owned(other)
            assert as_read(version) == first
        failing = False
        assert as_read(await brought(tmp_path)) == await as_owned(items)
    assert caplog.text.count("'items' stays as it was") == 1


async def test_a_reading_that_breaks_off_leaves_no_files(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = await ps.table("items", 2)
    await items.upsert(torch.arange(400), torch.randn(400, 2))
    most, taken = 0, 0

    def take(self: ExportedTable, change: tc.tables.Change) -> bool:
        nonlocal most, taken
        taken += 1
        if taken < 30:
            most = max(most, len(list(tmp_path.glob("items-*"))))
        if taken % 3 == 0 and taken < 30:
            raise tc.errors.UnavailableError("away")
        return before(self, change)

    before = ExportedTable.take
    monkeypatch.setattr(ExportedTable, "take", take)
    monkeypatch.setattr(exported_table, "PART_BYTES", 1)
    monkeypatch.setattr(reading, "PIECE_BYTES", 800)
    async with exporting(ps, tmp_path):
        await until(lambda: taken >= 30)
        assert most == 2
        assert as_read(await brought(tmp_path)) == await as_owned(items)


async def test_a_module_with_the_name_of_a_table_may_come_later(pair: tc.Client, tmp_path: Path) -> None:
    one, other = pair.owners
    await pair.table("items", 2, owners=[one])
    async with exporting(pair, tmp_path):
        await brought(tmp_path)
        await pair.module(nn.Linear, 2, 1, name="items", owner=other)
        version = await brought(tmp_path)
        assert version.modules == ["items"] and [*version.tables] == ["items"]


async def test_modules_with_buffers_alone_are_exported(ps: tc.Client, tmp_path: Path) -> None:
    await ps.module(nn.BatchNorm1d, 3, affine=False, name="norm")
    await ps.module("tests.hosted_models.Counter", name="no module")
    await ps.export(tmp_path)
    with ps_reader.open(tmp_path) as reader:
        assert reader.current.modules == ["norm"]


async def test_what_is_deleted_while_an_export_begins_is_left_out(
    ps: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone", "items"):
        await ps.table(name, 2)
    find = LiveObjects.find_table

    async def late(self: LiveObjects, name: str, had: Collection[str] = ()) -> tc.Table:
        if name == "gone":
            await ps.delete(name)
        return await find(self, name, had)

    monkeypatch.setattr(LiveObjects, "find_table", late)
    await ps.export(tmp_path)
    with ps_reader.open(tmp_path) as reader:
        assert [*reader.current.tables] == ["items"]
    with pytest.raises(tc.errors.UnknownNameError):
        await ps.export(tmp_path, tables=["gone"])


async def test_parts_without_parquet_are_written_anew_with_it(ps: tc.Client, tmp_path: Path) -> None:
    items = await ps.table("items", 2)
    await items.upsert(IDS, torch.randn(8, 2))
    await ps.export(tmp_path)
    await items.upsert(IDS[:1], torch.randn(1, 2))
    await ps.export(tmp_path, parquet=True)
    with ps_reader.open(tmp_path) as reader:
        assert as_read(reader.current) == await as_owned(items)
        newest = [tmp_path / name for name in reader.current.files if "items" in name]
    assert sum(twin_of(each).exists() for each in newest) == len(newest) - 1, "all but the index"


@pytest.mark.parametrize("keep", [1, 3])
async def test_behind_a_version_that_cannot_be_read_everything_is_exported_anew(
    ps: tc.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture, keep: int
) -> None:
    items = await ps.table("items", 2)
    for number in range(2):
        await items.upsert(IDS[number:], torch.randn(8 - number, 2))
        await ps.export(tmp_path)
    rows = await as_owned(items)
    with ps_reader.open(tmp_path) as reader:
        before = as_read(reader.rollback(1))
    (tmp_path / "version-2.json").write_text("{")
    there = files_in(tmp_path)
    folder = Folder(tmp_path, keep)
    assert folder.open() is None
    folder.close()
    assert there == files_in(tmp_path)
    await ps.export(tmp_path, keep=keep)
    with ps_reader.open(tmp_path) as reader:
        assert reader.current.number == 3 and as_read(reader.current) == rows
        assert reader.versions() == ([3] if keep == 1 else [1, 2, 3])
        if keep == 3:
            assert as_read(reader.rollback(1)) == before
    assert caplog.text.count("everything is exported anew") == 2


async def test_modules_of_one_name_in_a_snapshot_are_refused(pair: tc.Client, tmp_path: Path) -> None:
    nets = [await pair.module(nn.Linear, 2, 1, name="net", owner=owner) for owner in pair.owners]
    await pair.snapshot("both", nets)
    for chosen in ({}, {"modules": ["net"]}):
        with pytest.raises(tc.errors.InvalidArgumentError, match="have a module 'net' each"):
            await pair.export(tmp_path, snapshot="both", **chosen)


async def test_a_named_module_without_parameters_is_exported(tmp_path: Path) -> None:
    async with Owner(tmp_path / "data", modules=[export_models]) as owner, tc.connect(owner.address) as ps:
        net = await ps.module("tests.export_models.WithStateAlone", name="net")
        plain = await ps.module(nn.ReLU, name="plain")
        async with exporting(ps, tmp_path / "out", modules=[net, plain]):
            for number in (1.0, 2.0):
                await net.put(number)
                version = await brought(tmp_path / "out")
                assert version.state_dict("net")["_extra_state"].tolist() == [number]
                assert not version.state_dict("plain")


def test_a_forked_process_does_not_keep_the_folder(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 3)
    folder.open()
    forked = os.dup(folder._lock)  # the same open file, as a child has it
    try:
        folder.close()
        again = Folder(tmp_path, 3)
        assert again.open() is None  # raises while anything has the lock
        again.close()
    finally:
        os.close(forked)
