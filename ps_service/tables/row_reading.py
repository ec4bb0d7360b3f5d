"""Rows that are read by themselves, and not to train them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from ps_service.tables.shard import Block, TableShard


def ids_between(shard: TableShard, begin: int, count: int) -> tuple[torch.Tensor, int | None]:
    """The ids of the rows in use among the `count` numbers from `begin` on, and the number to go on with; None at the
    end."""
    with shard.lock:
        ids, in_use = shard.population.map.between(begin, begin + count)
        return ids[in_use], begin + count if begin + count < shard.population.map.rows else None


def rows_with(shard: TableShard, ids: torch.Tensor) -> tuple[Block, torch.Tensor]:
    """Copies of the rows of different ids, and the ids that have none."""
    with shard.lock:
        numbers = shard.population.map.find(ids)
        there = numbers >= 0
        numbers = numbers[there]
        block = {**shard.population.images(numbers).values, **shard.population.life(numbers)}
        return block, ids[~there]


def values_with(shard: TableShard, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the values of the rows of ids that have one, [m, dim], and which do, bool [n]. Nothing is counted."""
    with shard.lock:
        numbers = shard.population.map.find(ids)
        there = numbers >= 0
        return shard.population.values(numbers if there.all() else numbers[there]), there


def rows_at(shard: TableShard, numbers: torch.Tensor) -> Block:
    """The ids of rows that are there, by their numbers, and copies of their values."""
    with shard.lock:
        return {"ids": shard.population.map.ids_of(numbers), "values": shard.population.values(numbers)}


def without_rows(shard: TableShard, ids: torch.Tensor) -> torch.Tensor:
    """Those of some ids that have no row."""
    with shard.lock:
        return ids[shard.population.map.find(ids) < 0]
