"""Exports of tests, and what a reader has of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import ps_reader
import trainer_client as tc
from tests.waiting import until


def as_read(version: ps_reader.Version, name: str = "items") -> dict[int, bytes]:
    return {
        int(id): row.tobytes() for ids, rows in version.tables[name].blocks() for id, row in zip(ids, rows, strict=True)
    }


async def as_owned(table: tc.Table) -> dict[int, bytes]:
    return {
        int(id): row.numpy().tobytes()
        async for block in table.blocks(state=False)
        for id, row in zip(block["ids"], block["values"], strict=True)
    }


async def brought(path: Path) -> ps_reader.Version:
    """A version with every step that has been acknowledged by now."""
    now, found = time.time(), []

    def has_come() -> bool:
        with suppress(ps_reader.ExportError), ps_reader.open(path, every=3600) as reader:
            found.append(reader.current)
            return reader.as_of > now
        return False

    await until(has_come, 0.02)
    return found[-1]


@asynccontextmanager
async def exporting(ps: tc.Client, path: Path, **more: Any) -> AsyncIterator[None]:
    """A block beside which an export follows."""
    going_on = ps.export(path, follow=True, every=0.01, **more)
    try:
        yield
    finally:
        going_on.cancel()
        with suppress(tc.errors.CancelledCallError):
            await going_on
