"""Tests of exports that do not end, and of restores at once."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.integration.tables.test_contents import contents
from tests.waiting import until
from trainer_client.tables.files import PartsReader, PartsWriter


async def test_an_export_that_is_cancelled_or_fails_leaves_nothing(
    pair: tc.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = await pair.table("items", 2)
    await items.upsert(torch.arange(40), torch.ones(40, 2))
    writing, go_on = threading.Event(), threading.Event()

    def add(writer: PartsWriter, block: Any) -> None:
        writing.set()
        assert go_on.wait(60)
        before(writer, block)

    before = PartsWriter.add
    monkeypatch.setattr(PartsWriter, "add", add)
    exporting = items.export(tmp_path / "new" / "rows")
    await until(writing.is_set)
    assert [path.name for path in (tmp_path / "new" / "rows").iterdir()] == [".unfinished"]
    exporting.cancel()
    go_on.set()
    await until(lambda: not os.listdir(tmp_path))
    with pytest.raises(tc.errors.CancelledCallError):
        await exporting
    monkeypatch.setattr(PartsWriter, "add", _fails)
    with pytest.raises(OSError, match="the disk is full"):
        await items.export(tmp_path / "rows")
    assert not os.listdir(tmp_path)


def _fails(writer: PartsWriter, block: Any) -> None:
    raise OSError("the disk is full")


@pytest.mark.parametrize("start_again", [False, True])
async def test_of_two_restores_at_once_the_one_that_has_begun_last_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_again: bool
) -> None:
    monkeypatch.setattr("trainer_client.tables.contents._PIECE_ROWS", 10)
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(Owner(tmp_path / name, name)) for name in ("a", "b")]
        one, other = [await stack.enter_async_context(tc.connect(*(each.address for each in owners))) for _ in range(2)]
        items, same = await one.table("items", 2), await other.table("items", 2)
        for name, ids in ("first", torch.arange(40)), ("second", torch.arange(20, 60)):
            await items.upsert(ids, torch.full((40, 2), float(len(name))))
            assert await items.export(tmp_path / name) == 40
            await items.clear()
        stopped, go_on, checked = threading.Event(), threading.Event(), []

        def blocks(reader: PartsReader, *args: Any) -> Any:
            for block in before(reader, *args):
                yield block
                if reader._folder.name == "first" and checked:
                    stopped.set()
                    assert go_on.wait(60)
            checked.append(reader)

        before = PartsReader.blocks
        monkeypatch.setattr(PartsReader, "blocks", blocks)
        earlier = items.restore(tmp_path / "first")
        await until(stopped.is_set)
        assert await items.size() == 10
        assert await same.restore(tmp_path / "second") == 40
        if start_again:
            await asyncio.gather(*(each.restart() for each in owners))
        go_on.set()
        with pytest.raises(
            tc.errors.InvalidArgumentError, match="another restore of table 'items' has begun meanwhile"
        ):
            await earlier
        assert {id: each["values"] for id, each in (await contents(items)).items()} == {
            id: [6.0, 6.0] for id in range(20, 60)
        }
        assert await items.restore(tmp_path / "first") == 40
