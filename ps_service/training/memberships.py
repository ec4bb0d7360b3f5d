"""Which trainers use which optimizers, so that no round waits for a trainer that is gone."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_service.training.aggregator import Aggregator


class Memberships:
    """The optimizers that each trainer uses. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[bytes, weakref.WeakSet[Aggregator]] = {}

    def add(self, trainer: bytes, aggregator: Aggregator) -> None:
        """Rounds may wait for the trainer from now on. Does nothing the second time."""
        with self._lock:
            known = self._of.setdefault(trainer, weakref.WeakSet())
            if aggregator in known:
                return
            known.add(aggregator)
        aggregator.join(trainer)

    def remove(self, trainer: bytes, aggregator: Aggregator) -> None:
        """Rounds do not wait for the trainer any more."""
        with self._lock:
            known = self._of.get(trainer)
            if known is not None:
                known.discard(aggregator)
        aggregator.leave(trainer)

    def forget(self, trainer: bytes) -> None:
        """The trainer is gone: no round waits for it."""
        with self._lock:
            gone = list(self._of.pop(trainer, ()))
        for aggregator in gone:
            aggregator.leave(trainer)
