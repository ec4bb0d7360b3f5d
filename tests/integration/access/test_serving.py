"""Readers attach to tables by name and read them, and `bulk` exports them, without the right to train."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest
import torch
from torch import nn

import ps_reader
import trainer_client as tc
from ps_service.server import Server
from tests.integration.access.identities import Identities


async def test_tables_are_read_without_the_right_to_train(
    guarded: Server, identities: Identities, tmp_path: Path
) -> None:
    ids = torch.arange(5)
    async with identities.connect(guarded, "trainer") as ps:
        await (await ps.table("items", 2)).upsert(ids, torch.randn(5, 2))
    async with identities.connect(guarded, "reader") as ps:
        items = await ps.table("items")
        assert (await items.read(ids)).found.all() and (await ps.reader(items)(ids)).found.all()
        for refused in (lambda: items.optimizer.versions, lambda: items.parts):
            with pytest.raises(tc.errors.PermissionDeniedError, match="optimizer needs the role trainer"):
                refused()
        assert "needs the role trainer" in repr(items.optimizer)
        with pytest.raises(tc.errors.PermissionDeniedError, match="bulk"):
            await anext(items.changes())
        with pytest.raises(tc.errors.PermissionDeniedError, match="create needs the role trainer"):
            await ps.table("items", 2)
    async with identities.connect(guarded, "bulk") as ps:
        async with aclosing((await ps.table("items")).changes()) as changes:
            assert (await anext(changes)).ids.tolist() == ids.tolist()
        await ps.export(tmp_path / "out")
    with ps_reader.open(tmp_path / "out") as reader:
        assert len(reader.current.tables["items"]) == 5


async def test_snapshots_are_made_by_trainers_and_read_by_readers(
    guarded: Server, identities: Identities, tmp_path: Path
) -> None:
    ids = torch.arange(5)
    async with identities.connect(guarded, "trainer") as ps:
        items, net = await ps.table("items", 2), await ps.module(nn.Linear, 2, 1, name="net")
        await items.upsert(ids, torch.randn(5, 2))
        expected = (await items.read(ids)).values
        await ps.snapshot("monday", [items, net])
        await items.upsert(ids, torch.zeros(5, 2))
    async with identities.connect(guarded, "reader") as ps:
        pinned = await ps.snapshot("monday")
        assert torch.equal((await pinned["items"].read(ids)).values, expected)
        assert (await pinned["net"].read(expected)).shape == (5, 1) and await pinned.nbytes()
        for refused in (pinned.remove(), ps.snapshot("tuesday", [await ps.table("items")])):
            with pytest.raises(tc.errors.PermissionDeniedError, match="snapshot needs the role trainer"):
                await refused
        for refused in (pinned["net"].state_dict(), ps.export(tmp_path / "out", snapshot="monday")):
            with pytest.raises(tc.errors.PermissionDeniedError, match="needs the role bulk"):
                await refused
    async with identities.connect(guarded, "bulk") as ps:
        await ps.export(tmp_path / "bulk", snapshot="monday")
    with ps_reader.open(tmp_path / "bulk") as reader:
        assert len(reader.current.tables["items"]) == 5 and reader.current.modules == ["net"]


async def test_each_namespace_has_snapshots_of_its_own(identities: Identities) -> None:
    identities.add("anna", namespaces=(("ads", ("trainer",)),))
    async with (
        identities.serving() as server,
        identities.connect(server, "anna", namespace="ads") as ads,
        identities.connect(server, "admin") as ps,
    ):
        for each in (ads, ps):
            net = await each.module(nn.Linear, 2, 1, name="net")
            pinned = await each.snapshot("monday", [net])
            assert [one.name for one in pinned.objects] == ["net"]
        await (await ps.snapshot("monday")).remove()
        with pytest.raises(tc.errors.UnknownNameError):
            await ps.snapshot("monday")
        assert [one.name for one in (await ads.snapshot("monday")).objects] == ["net"]
