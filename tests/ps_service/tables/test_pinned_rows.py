"""Pinned rows are those of their moment, bit for bit, whatever happens to the shard afterwards."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_service.tables.pinned_rows import PinnedRows
from ps_service.tables.shard import TableShard
from ps_wire.tables.options import SGD, LazyAdam
from tests.ps_service.tables.test_row_changes import ADMISSIONS, EVICTIONS, OPERATIONS, Clock, Run

Rows = dict[int, bytes]


def rows_of(shard: TableShard) -> Rows:
    return {id: values for block in shard.blocks() for id, values in pairs(block)}


def pairs(block: Any) -> list[tuple[int, bytes]]:
    ids, values = block["ids"].tolist(), [each.numpy().tobytes() for each in block["values"]]
    return list(zip(ids, values, strict=True))


def by_blocks(pinned: PinnedRows, count: int) -> Rows:
    found, begin = list[tuple[int, bytes]](), 0
    while begin is not None:
        block, begin = pinned.block(begin, count)  # type: ignore[assignment]
        found += pairs(block)
    assert len(found) == len(dict(found)) == pinned.count
    return dict(found)


def by_ids(pinned: PinnedRows, ids: list[int]) -> Rows:
    asked = torch.tensor(ids, dtype=torch.int64)
    values, there = pinned.read(asked)
    return dict(pairs({"ids": asked[there], "values": values}))


@given(
    st.lists(OPERATIONS, min_size=1, max_size=5),
    st.sampled_from(EVICTIONS),
    st.sampled_from(ADMISSIONS),
    st.sampled_from([SGD(0.5, momentum=0.9), LazyAdam(0.1)]),
    st.sampled_from([1, 3, 100]),
)
@settings(deadline=None, max_examples=25)
def test_pinned_rows_stay(runs: list[Any], evict: Any, admit: Any, optimizer: Any, count: int) -> None:
    run = Run(Clock(), optimizer=optimizer, eviction=evict, admission=admit)
    known: list[tuple[PinnedRows, Rows]] = []
    for operations in runs:
        run.run(operations)
        known.append((PinnedRows(run.shard), rows_of(run.shard)))
        ids = sorted({*rows_of(run.shard), *(id for _, rows in known for id in rows), 7, -1})
        for pinned, rows in known:
            assert by_blocks(pinned, count) == rows == by_ids(pinned, ids)


def shard(rows: int | None = None, **more: Any) -> TableShard:
    made = TableShard(4, SGD(0.1), seed=1, rows=rows, **more)
    made.look_up(torch.arange(20))
    return made


@pytest.mark.parametrize("rows", [None, 20])
def test_rows_that_are_replaced_and_changed_again_by_the_log_stay(rows: int | None) -> None:
    made, again = shard(rows), shard(rows)
    before, pinned = rows_of(made), PinnedRows(made)
    again.put({"ids": torch.arange(9), "values": torch.ones(9, 4)})
    made.redo(again.images(again.rows_of(torch.arange(9))[0]))
    assert rows_of(made) == rows_of(again) != before
    made.clear()
    made.load(again.blocks())
    assert by_blocks(pinned, 7) == before == by_ids(pinned, list(range(20)))


def test_only_rows_that_change_are_copied_and_only_once() -> None:
    made = shard()
    pinned = PinnedRows(made)
    alone = pinned.nbytes
    made.put({"ids": torch.arange(5), "values": torch.ones(5, 4)})
    once = pinned.nbytes
    assert alone < once
    made.put({"ids": torch.arange(5), "values": torch.zeros(5, 4)})
    made.look_up(torch.arange(100, 4000))
    assert pinned.nbytes == once


def test_rows_that_nobody_refers_to_are_not_kept() -> None:
    made = shard()
    pinned = PinnedRows(made)
    assert len(made.watchers._keepers) == 1
    del pinned
    gc.collect()
    made.put({"ids": torch.arange(5), "values": torch.ones(5, 4)})
    assert not made.watchers._keepers
