"""Rows by id: their numbers and keys mean nothing after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ps_service.tables.row_gradients import rows_gradient
from ps_service.tables.stand_in import AllRows, summed_rows

if TYPE_CHECKING:
    from ps_service.tables.shard import TableShard

Named = torch.Tensor | dict[str, torch.Tensor]
"""A gradient; that of a table as `ids`, int64 [n], and `values`, float32 [n, dim]."""


def named(parameter: torch.Tensor, gradient: torch.Tensor) -> Named:
    """A gradient in the form that survives a restart, without rows that have gone."""
    if not isinstance(parameter, AllRows):
        return gradient
    shard = parameter.table.shard
    keys, values = summed_rows(gradient)
    with shard.lock:
        generations = shard.population.generations
        if (there := generations.current(keys)) is not None:
            keys, values = keys[there], values[there]
        return {"ids": shard.population.map.ids_of(generations.numbers(keys)), "values": values}


def keyed(parameter: torch.Tensor, gradient: Named) -> torch.Tensor:
    """A gradient that `named` has given, on the device of its parameter. Rows that are not there are left out."""
    if isinstance(gradient, torch.Tensor):
        return gradient.to(parameter.device)
    assert isinstance(parameter, AllRows)
    shard = parameter.table.shard
    with shard.lock:
        numbers = shard.population.map.find(gradient["ids"])
        there = numbers >= 0
        keys = shard.population.generations.keys(numbers[there])
    order = keys.argsort()
    return rows_gradient(keys[order], gradient["values"][there][order])


def ids_in(shard: TableShard) -> torch.Tensor:
    """A copy of the ids of all rows, int64 [n]."""
    with shard.lock:
        return shard.population.map.items()[0]
