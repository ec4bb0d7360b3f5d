"""Which trainers use which optimizers, so that no round waits for a trainer that is gone."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_service.training.optimizers import HostedOptimizer


class Memberships:
    """The optimizers that each trainer uses. Safe from several threads.

    Its lock is held while a trainer joins or leaves, and while an optimizer gets its first policy.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._of: dict[bytes, weakref.WeakSet[HostedOptimizer]] = {}

    def add(self, trainer: bytes, optimizer: HostedOptimizer) -> None:
        """Rounds may wait for the trainer from now on. Does nothing the second time."""
        with self.lock:
            known = self._of.setdefault(trainer, weakref.WeakSet())
            if optimizer in known:
                return
            known.add(optimizer)
            optimizer.trainers[trainer] = None
            aggregator = optimizer.aggregator
        if aggregator is not None:
            aggregator.join(trainer)

    def remove(self, trainer: bytes, optimizer: HostedOptimizer) -> None:
        """Rounds do not wait for the trainer any more."""
        with self.lock:
            known = self._of.get(trainer)
            if known is not None:
                known.discard(optimizer)
            optimizer.trainers.pop(trainer, None)
        _leave(trainer, optimizer)

    def forget(self, trainer: bytes) -> None:
        """The trainer is gone: no round waits for it."""
        with self.lock:
            gone = list(self._of.pop(trainer, ()))
            for optimizer in gone:
                optimizer.trainers.pop(trainer, None)
        for optimizer in gone:
            _leave(trainer, optimizer)


def _leave(trainer: bytes, optimizer: HostedOptimizer) -> None:
    if optimizer.aggregator is not None:
        optimizer.aggregator.leave(trainer)
