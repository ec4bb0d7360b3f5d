"""Tests that nothing is left to compile for the first request."""

from __future__ import annotations

import pytest
import torch

from ps_service.tables import compiled
from ps_service.tables.preparing import PREPARATION
from ps_service.tables.shard import TableShard
from ps_wire.tables.options import SGD, LazyAdam, Normal, RowGroup, RowOptimizer, RowWiseAdagrad, Uniform
from tests.ps_service.tables.conftest import train


@pytest.mark.skipif(not compiled.available(), reason="numba is not installed")
def test_everything_is_compiled_when_it_is_warm() -> None:
    from ps_service.tables.id_map import kernels
    from ps_service.tables.kernels import loops, updates

    def compiled_versions() -> dict[str, int]:
        functions = [each for module in (kernels, loops, updates) for each in vars(module).values()]
        return {str(each): len(each.signatures) for each in functions if hasattr(each, "signatures")}

    PREPARATION.ensure()
    before = compiled_versions()
    assert len(before) - list(before.values()).count(0) >= 13
    every: tuple[RowOptimizer, ...] = (SGD(0.1), SGD(0.1, 0.9), RowWiseAdagrad(weight_decay=0.1), LazyAdam())
    for optimizer in every:
        for init, rows in ((Normal(), None), (Uniform(), 10)):
            shard = TableShard(5, optimizer, init, groups=[RowGroup(0, 3, lr=1.0)], rows=rows)
            ids, offsets = torch.tensor([[5, 6], [7, 5], [8, 8]])[:, 0], torch.tensor([0, 2])
            shard.look_up(ids)
            shard.bag(ids, offsets, torch.ones(3))
            train(shard, ids, torch.ones(2, 5), offsets, torch.ones(3))
            train(shard, ids, torch.ones(2, 5).t().contiguous().t(), offsets)
            shard.remove(ids)
    assert compiled_versions() == before
