"""Which trainers use which optimizers, so that no round waits for a trainer that is gone."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_service.training.optimizers import HostedOptimizer


class Memberships:
    """The optimizers that each trainer uses. Safe from several threads. Its lock is held while a trainer joins or
    leaves, and while an optimizer gets its first policy."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._used: weakref.WeakSet[HostedOptimizer] = weakref.WeakSet()

    def add(self, trainer: bytes, optimizer: HostedOptimizer) -> None:
        """Rounds may wait for the trainer from now on. Does nothing the second time."""
        with self.lock:
            if trainer in optimizer.trainers:
                return
            optimizer.trainers[trainer] = None
            self._used.add(optimizer)
            aggregator = optimizer.aggregator
        if aggregator is not None:
            aggregator.join(trainer)

    def remove(self, trainer: bytes, optimizer: HostedOptimizer) -> None:
        """Rounds do not wait for the trainer any more."""
        with self.lock:
            optimizer.trainers.pop(trainer, None)
        if optimizer.aggregator is not None:
            optimizer.aggregator.leave(trainer)

    def forget(self, trainer: bytes) -> None:
        """The trainer is gone: no round waits for it."""
        with self.lock:
            used = [each for each in self._used if trainer in each.trainers]
        for optimizer in used:
            self.remove(trainer, optimizer)
