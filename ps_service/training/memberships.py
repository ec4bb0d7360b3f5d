"""Which trainers use which optimizers, so that no round waits for a trainer that is gone, and the policies of these."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Final

from ps_service.training.aggregator import PLAIN, Aggregator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_service.execution.fair_queue import Work
    from ps_service.training.optimizers import HostedOptimizer
    from ps_service.training.round_journal import RoundJournal
    from ps_wire.policies import Policy


class Memberships:
    """The optimizers that each trainer uses, and their policies. Safe from several threads. Its lock is held while a
    trainer joins or leaves, and while an optimizer gets its first policy. What collects gradients from then on runs in
    threads by `submit`, and names trainers by `describe`."""

    def __init__(
        self,
        submit: Callable[[Callable[[], Work]], None],
        describe: Callable[[bytes], str],
        is_draining: Callable[[], bool],
    ) -> None:
        self._submit: Final = submit
        self._describe: Final = describe
        self._is_draining: Final = is_draining
        self._lock = threading.Lock()
        self._used: weakref.WeakSet[HostedOptimizer] = weakref.WeakSet()
        # While the log is replayed, rounds over several owners keep trainers whose sessions end.
        self.is_replayed = False
        # Makes what notes the rounds of an optimizer, if the owner has a log.
        self.journals: Callable[[HostedOptimizer, Aggregator], RoundJournal] | None = None

    def add(self, trainer: bytes, optimizer: HostedOptimizer) -> None:
        """Rounds may wait for the trainer from now on. Does nothing the second time."""
        with self._lock:
            if trainer in optimizer.trainers:
                return
            optimizer.trainers[trainer] = None
            self._used.add(optimizer)
            aggregator = optimizer.aggregator
        if aggregator is not None:
            aggregator.join(trainer)

    def remove(self, trainer: bytes, optimizer: HostedOptimizer) -> None:
        """Rounds do not wait for the trainer any more."""
        with self._lock:
            optimizer.trainers.pop(trainer, None)
        if optimizer.aggregator is not None:
            optimizer.aggregator.leave(trainer)

    def forget(self, trainer: bytes) -> None:
        """The trainer is gone: no round waits for it."""
        with self._lock:
            used = [each for each in self._used if trainer in each.trainers and not self._keeps_members(each)]
        for optimizer in used:
            self.remove(trainer, optimizer)

    def _keeps_members(self, optimizer: HostedOptimizer) -> bool:
        rounds = optimizer.rounds if self.is_replayed else None
        return rounds is not None and rounds.coordinator is not None

    def change_policy(self, optimizer: HostedOptimizer, policy: Policy) -> None:
        """Has an optimizer follow another policy from now on."""
        if policy != PLAIN or optimizer.aggregator is not None:
            self.aggregator_of(optimizer).change(policy)

    def aggregator_of(self, optimizer: HostedOptimizer) -> Aggregator:
        """What collects gradients for an optimizer, made if it has had no policy yet. It knows its trainers."""
        with self._lock:
            if optimizer.aggregator is not None:
                return optimizer.aggregator
            made = Aggregator(optimizer)
            made.queue.submit, made.describe = self._submit, self._describe
            if self.journals is not None:
                made.journal = self.journals(optimizer, made)
            optimizer.aggregator = made
        # These were told of all optimizers with an aggregator, and maybe too early for this one.
        if self._is_draining():
            made.drain()
        if optimizer.is_removed:
            made.end()
        return made
