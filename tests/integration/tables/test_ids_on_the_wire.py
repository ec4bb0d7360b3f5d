"""Ids take four bytes in requests where all of them fit, also those of tables that take any int64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trainer_client as tc
from tests.training import owners

EDGE = 1 << 31


@pytest.mark.parametrize(
    ("first", "dtype"),
    [
        (0, torch.int32),
        (-EDGE, torch.int32),
        (EDGE - 4, torch.int32),
        (EDGE - 3, torch.int64),
        (-EDGE - 1, torch.int64),
        (1 << 62, torch.int64),
    ],
)
async def test_ids_take_four_bytes_where_all_of_them_fit(
    first: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.tensor([3, 0, 2, 0]) + first
    async with owners("ps0") as (server,), tc.connect(server.address) as ps:
        items = await ps.table("items", 3, tc.tables.SGD(lr=0.5), init=tc.tables.Normal(1.0))
        (shard,) = items.shards.values()
        before, asked = shard.call_encoding, []

        def call_encoding(encode: Any, method: str, parts: Any) -> Any:
            asked.extend(part[1].dtype for part in parts)
            return before(encode, method, parts)

        monkeypatch.setattr(shard, "call_encoding", call_encoding)
        async with ps.context() as ctx:
            rows = await items(ids)
            pooled = await items.bag(ids, torch.tensor([0, 1]))
            await ctx.backward(rows.sum() + pooled.sum(), step=items.optimizer)
        assert asked == [dtype] * 2
        assert torch.equal(rows[1], rows[3]) and len(rows.unique(dim=0)) == 3
        torch.testing.assert_close(pooled, torch.stack([rows[0], rows[1:].sum(0)]))
        # Twice the learning rate for each time that a row was looked up.
        torch.testing.assert_close(await items(ids), rows.detach() - torch.tensor([[1.0], [2.0], [1.0], [2.0]]))
        found = [each for block in [block async for block in items.blocks()] for each in block["ids"].tolist()]
        assert sorted(found) == [first, first + 2, first + 3]
