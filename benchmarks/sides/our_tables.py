"""The work of the rows with tables on our side, with the blocking client."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import trainer_client as tc
from benchmarks import data
from benchmarks.rows import Row
from benchmarks.sizes import Sizes
from benchmarks.work import Mismatch, Steps, Work


def one(ps: Any, sizes: Sizes, row: Row, owners: Sequence[str] | None = None) -> Work:
    """Steps of a table, on the first owner or on several."""
    options = {"rows": sizes.table_rows, "init": tc.tables.Zeros(), "owners": owners or ps.owners[:1]}
    table = ps.table(row.name, sizes.dim, tc.tables.SGD(lr=data.TABLE_LR), **options)

    def step(ids: Tensor, wanted: Tensor) -> Tensor:
        with ps.context() as ctx:
            loss = data.bag_loss(table.bag(ids), wanted)
            ctx.backward(loss, step=table.optimizer)
        return loss

    batches = data.table_bags(sizes, row.zipf)
    return Steps(step, batches, lambda: {"rows 0": table.bag(data.probe_ids(batches))})


def several(ps: Any, sizes: Sizes, row: Row) -> Work:
    """Steps of several tables, which are looked up and stepped together."""
    rows, lr = data.rows_of_each(sizes, row.tables), tc.tables.SGD(lr=data.TABLE_LR)
    names = [f"{row.name}.{number}" for number in range(row.tables)]
    tables = [ps.table(name, sizes.dim, lr, rows=rows, init=tc.tables.Zeros()) for name in names]
    opt = ps.optimizer(None, tables)

    def step(ids: Tensor, wanted: Tensor) -> Tensor:
        with ps.context() as ctx:
            found = ps.look_up({table: {"ids": each} for table, each in zip(tables, ids, strict=True)})
            loss = data.bag_loss(torch.cat(list(found.values())), wanted)
            ctx.backward(loss, step=opt)
        return loss

    batches = data.many_bags(sizes, row.tables)
    return Steps(step, batches, lambda: {"rows 0": tables[0].bag(data.probe_of_many(batches)[0])})


class Looks:
    """Look-ups of many ids in a pass, without a step.

    Args:
        ps: The client.
        sizes: The dimensions of the work.
        grows: Whether all ids are new; otherwise they have rows.
    """

    def __init__(self, ps: Any, sizes: Sizes, grows: bool) -> None:
        self._ps = ps
        self._sizes = sizes
        self._table = ps.table("grow" if grows else "seen", data.GROW_DIM)
        self._grows = grows
        self._done = 0

    def turn(self, count: int) -> float:
        seconds = 0.0
        for _ in range(count):
            ids = data.new_ids(self._sizes, self._done if self._grows else self._done % self._sizes.batches)
            began = perf_counter()
            with self._ps.context():
                rows = self._table(ids)
            seconds += perf_counter() - began
            if rows.shape != (len(ids), data.GROW_DIM):
                raise Mismatch(f"a look-up of {len(ids)} ids gave {tuple(rows.shape)}")
            self._done += 1
            del rows
        return seconds

    def result(self) -> dict[str, Tensor]:
        if self._grows and self._table.size() != self._done * self._sizes.bags * self._sizes.per_bag:
            raise Mismatch(f"{self._done} look-ups of new ids left {self._table.size()} rows")
        return {}
