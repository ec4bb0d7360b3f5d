"""Readers attach to tables by name and read them, and `bulk` exports them, without the right to train."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest
import torch

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
