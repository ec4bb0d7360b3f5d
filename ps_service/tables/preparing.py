"""Compiles what tables need when a process makes its first one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch

from ps_service.tables import compiled
from ps_service.tables.kernels import make_kernels
from ps_wire.runtime.locks import ReportingLock
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

if TYPE_CHECKING:
    from ps_service.tables.shard import TableShard


class Preparation:
    """Runs every compiled loop once in a process, so that no look-up and no step waits for a compiler."""

    def __init__(self) -> None:
        self._lock: Final = ReportingLock()
        self._begun = False
        self._ended = False

    def ensure(self, make: Callable[..., TableShard]) -> None:
        """Returns when everything is compiled. Does nothing without numba, or within itself.

        Args:
            make: Makes a shard.
        """
        if self._ended or not compiled.AVAILABLE:
            return
        with self._lock:
            if self._begun:
                return
            self._begun = True
            every: tuple[RowOptimizer, ...] = (
                SGD(),
                SGD(momentum=0.5),
                Adagrad(),
                RowWiseAdagrad(),
                LazyAdam(),
                FTRL(),
            )
            for optimizer in (*every, PartialRowWiseAdam()):
                shard = make(8, optimizer, Normal())
                ids = torch.tensor([1, 2, 1])
                shard.look_up(ids, add=False)
                shard.look_up(ids)
                shard.apply(ids, torch.zeros(3, 8))
                shard.remove(ids)
            fixed = make(8, SGD(), Normal(), rows=3)
            fixed.look_up(ids)
            fixed.remove(ids)
            kernels = make_kernels("numba")
            kernels.sum(kernels.group(torch.tensor([1, 1]), torch.zeros(2, 8)))
            self._ended = True


PREPARATION: Final = Preparation()
"""That of this process."""
