"""Compiles what tables need before the first request needs it."""

from __future__ import annotations

import torch

from ps_service.tables import compiled
from ps_service.tables.kernels import make_kernels
from ps_service.tables.shard import TableShard
from ps_wire.tables.options import (
    FTRL,
    SGD,
    Adagrad,
    LazyAdam,
    Normal,
    PartialRowWiseAdam,
    RowOptimizer,
    RowWiseAdagrad,
)


def warm() -> None:
    """Runs every compiled loop once. Does nothing without numba.

    The first time on a machine this takes most of a minute of one processor, and later, with the code on disk, less
    than a second. It may run in any thread, and tables may be used meanwhile.
    """
    if not compiled.AVAILABLE:
        return
    every: tuple[RowOptimizer, ...] = (SGD(), SGD(momentum=0.5), Adagrad(), RowWiseAdagrad(), LazyAdam(), FTRL())
    for optimizer in (*every, PartialRowWiseAdam()):
        shard = TableShard(8, optimizer, Normal())
        ids = torch.tensor([1, 2, 1])
        shard.look_up(ids, add=False)
        shard.look_up(ids)
        shard.apply(ids, torch.zeros(3, 8))
        shard.remove(ids)
    kernels = make_kernels("numba")
    kernels.sum(kernels.group(torch.tensor([1, 1]), torch.zeros(2, 8)))
