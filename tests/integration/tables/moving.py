"""A table whose rows move, and passes that train it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import trainer_client as tc

NAMES = ("ps0", "ps1", "ps2")

Addresses = Sequence[str]


async def rows_of(table: tc.Table) -> dict[int, Any]:
    """What a table has for each id, but for the ages."""
    found: dict[int, Any] = {}
    async for block in table.blocks():
        ids = block["ids"].tolist()
        columns = [_bits_of_rows(block[name]) for name in sorted(block.keys() - {"age"})]
        assert len(set(ids)) == len(ids) and found.keys().isdisjoint(ids)
        found.update(zip(ids, zip(*columns, strict=True), strict=True))
    return found


def _bits_of_rows(column: torch.Tensor) -> list[Any]:
    """The type, the shape and the bytes of each row."""
    flat = column.contiguous().view(len(column), -1).view(torch.uint8).numpy() if len(column) else []
    return [(column.dtype, tuple(column.shape[1:]), row.tobytes()) for row in flat]


async def table_of(ps: tc.Client, name: str, optimizer: Any = None, **more: Any) -> tc.Table:
    more = {"owners": ["ps0", "ps1"], "init": tc.tables.Normal(1.0)} | more
    return await ps.table(name, 4, optimizer or tc.tables.LazyAdam(0.1), **more)


async def train(ps: tc.Client, items: tc.Table, ids: torch.Tensor) -> float:
    """A pass over rows and bags of a table, with a step; its loss. Each bag has rows of one owner alone: sums over
    several have other last bits."""
    async with ps.context() as ctx:
        rows, bags = await items(ids), await items.bag(ids * 7, torch.arange(len(ids)))
        loss = rows.square().sum() + (bags - 1).square().sum()
        await ctx.backward(loss, step=items.optimizer)
    return loss.item()


def drawn(seed: int, most: int = 500) -> torch.Tensor:
    return torch.randint(-most, most, (64,), generator=torch.Generator().manual_seed(seed))
