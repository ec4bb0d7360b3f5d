"""Look-ups in a table that grows."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final

import psutil
import torch
from torch import Tensor

import trainer_client as tc
from benchmarks.scale.steps import Pace, timed

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.scale.owner import Owner

DIM: Final = 16
BAGS: Final = 4096
PER_BAG: Final = 20

_ROW_BYTES: Final = 4 * (DIM + 1) + 32
"""Bytes of a row, of what its optimizer keeps, and at most of the map."""

_SCATTER: Final = 0x1E3779B97F4A7C15
"""An odd factor, which is a bijection of 64-bit numbers: ids in an order without a pattern."""


async def look_ups(
    owner: Owner, values: Sequence[int], pace: Pace, told: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A look-up of pooled rows that exist, in a pass, against the rows of a table with row-wise Adagrad."""
    points: list[dict[str, Any]] = []
    async with tc.connect(owner.address) as ps:
        items = await ps.table("items", DIM, tc.tables.RowWiseAdagrad(lr=0.1))
        rows = 0
        for value in values:
            if 2 * value * _ROW_BYTES > psutil.virtual_memory().available:
                told(f"{value:,}: left out, memory is short")
                continue
            while rows < value:
                count = min(BAGS * PER_BAG, value - rows)
                await _pooled(ps, items, torch.arange(rows, rows + count))
                rows += count

            def look_up(rows: int = rows) -> Awaitable[Tensor]:
                return _pooled(ps, items, torch.randint(rows, (BAGS * PER_BAG,)))

            found = await timed(look_up, pace)
            (table,) = (await ps.status()).tables
            points.append({"x": value, **found, "bytes_each": round(table.bytes / table.rows, 1)})
            told(f"{value:,}: {found['ms']:.2f} ms, {points[-1]['bytes_each']} bytes per row")
    return points


async def _pooled(ps: tc.Client, items: tc.Table, numbers: Tensor) -> Tensor:
    """The sums of bags of ids with these numbers. The last ids, of which there is no whole bag, make bags of one."""
    ids = numbers * _SCATTER
    whole = len(ids) // PER_BAG * PER_BAG
    offsets = torch.cat((torch.arange(0, whole, PER_BAG), torch.arange(whole, len(ids))))
    async with ps.context():
        return await items.bag(ids, offsets)
