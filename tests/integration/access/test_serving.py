"""Readers attach to tables by name and read them, and `bulk` exports them, without the right to train."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ps_reader
import trainer_client as tc
from ps_service.server import Server
from tests.integration.access.identities import Identities
from tests.waiting import SECONDS
from trainer_client.tables import changes


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


async def test_who_follows_rows_waits_until_their_owners_agree_on_a_move_which_only_an_admin_can_tell(
    identities: Identities, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, waited = torch.arange(50), list[int]()
    async with identities.serving("ps0") as one, identities.serving("ps1") as other, AsyncExitStack() as stack:

        async def table_of(role: str) -> tc.Table:
            ps = tc.connect(one.address, other.address, token=identities.tokens[role])
            return await (await stack.enter_async_context(ps)).table("items", **made)

        made: dict[str, Any] = {"dim": 2, "owners": ["ps0", "ps1"]}
        items = await table_of("admin")
        await items.upsert(ids, torch.randn(50, 2))
        # The program that moves them is killed after the release, and with it what ps1 was to be told.
        (table,) = [each.value for each in one.engine.registry.objects() if each.is_table]
        table.take(table.routing.moved(table.routing.slots("ps0"), "ps1"))
        made.clear()
        theirs = await table_of("bulk")

        async def pause(refusals: int) -> None:
            waited.append(refusals)
            if refusals == 3:
                await items.size()

        monkeypatch.setattr(changes, "pause", pause)
        async with asyncio.timeout(SECONDS), aclosing(theirs.changes(every=0)) as following:
            assert (await anext(following)).resets
        assert waited == [1, 2, 3]


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
