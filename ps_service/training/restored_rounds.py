"""The part of the rounds of an optimizer that continues from a checkpoint and from the log."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ps_service.policies.offers import Close, Pooled
from ps_service.policies.rounds import Rounds
from ps_service.training.pool import Pool
from ps_service.training.round_journal import OpenRound
from ps_service.training.round_steps import RoundSteps

if TYPE_CHECKING:
    import torch

    from ps_service.policies.coordinator import Coordinator
    from ps_service.policies.decisions import Entry
    from ps_service.policies.offers import Counted
    from ps_service.training.following import Following
    from ps_service.training.round_journal import PooledReport, RoundJournal
    from ps_service.training.round_steps import Stepper
    from ps_wire.policies import Policy


class RestoredRounds(ABC):
    """What an `Aggregator` has to keep, and how it gets that again. Nothing else may happen while it does."""

    def __init__(self, optimizer: Stepper, policy: Policy) -> None:
        self.steps = RoundSteps(optimizer)
        self.reported = optimizer.reported
        self.coordinator: Coordinator | None = None
        self.following: Following | None = None
        self.journal: RoundJournal | None = None
        self._lock = threading.Lock()
        self._rounds = Rounds(policy)
        self._numbers = itertools.count(1)
        self._pool = Pool(self.reported)

    @property
    def _optimizer(self) -> Stepper:
        return self.steps.optimizer

    @abstractmethod
    def _close(self, close: Close) -> None:
        """Steps with the gradients of a round."""

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients are there whose trainers have gone on."""
        following = self.following
        return self._pool.total is not None or (following is not None and following.open_round()[1] is not None)

    def membership(self) -> tuple[dict[bytes, int], int]:
        """The trainers that use the optimizer, with how many gradients of each have counted or were dropped, and the
        largest number of trainers at one time since the policy was set, for a checkpoint."""
        with self._lock:
            clocks = {trainer: member.clock for trainer, member in self._rounds.members.items()}
            return clocks, self._rounds.most

    def restore_membership(self, clocks: Mapping[bytes, int], most: int) -> None:
        """Continues with the trainers of a checkpoint, after its state, policy and decisions are restored."""
        with self._lock:
            self._rounds.version = self._optimizer.version
            self._rounds.restore_members(clocks, most)

    def restore_rounds(
        self, number: int, known: Mapping[str, int], entries: Iterable[Entry], joins: int, epochs: Mapping[bytes, int]
    ) -> None:
        """Continues from a checkpoint; arguments as for `DecisionLog.restore` and `Coordinator.restore`."""
        coordinator = self.coordinator
        assert coordinator is not None
        with self._lock:
            coordinator.log.restore(number, known, entries)
            coordinator.restore(self._optimizer.version, joins, epochs)

    def note_in(self, journal: RoundJournal) -> None:
        """What happens from now on is noted there."""
        self.journal = journal
        self._rounds.version = self._optimizer.version
        if self.following is not None:
            self.following.journal = journal.follows(self.following.steps)

    def decided(self, after: int) -> tuple[int, list[Entry]]:
        """The decisions with a greater number, if this owner decides for several, and the number of the last that is
        forgotten."""
        if self.coordinator is None:
            return 0, []
        with self._lock:
            log = self.coordinator.log
            return log.base, log.after(after)

    def carried_out(self) -> dict[str, int]:
        """The decisions that other owners have carried out, if this one decides for several: of each the last that is
        known."""
        if self.coordinator is None:
            return {}
        with self._lock:
            log = self.coordinator.log
            return {owner: max(number, log.base) for owner, number in log.applied.items()}

    def _made(self, decision: Close | Pooled) -> None:
        """Other owners may be told of a decision from now on: this one has made its part."""
        if self.coordinator is not None:
            with self._lock:
                self.coordinator.log.made(decision)

    def last_decision(self) -> int:
        """The number of the last decision, 0 if there is none, or another owner decides."""
        return 0 if self.coordinator is None else self.coordinator.log.number

    @contextmanager
    def replaying(self, base: int, entries: Iterable[Entry], epochs: Mapping[bytes, int]) -> Iterator[None]:
        """For a block that does again what has led to decisions, which are these and no others; to joins likewise."""
        number = self.last_decision()
        yield
        if (coordinator := self.coordinator) is not None:
            with self._lock:
                coordinator.log.cut(number)
                coordinator.log.extend(base, entries)
                coordinator.rejoin(epochs)

    @property
    def open_round(self) -> OpenRound:
        """The round that is open, as it was restored."""
        return OpenRound(list(self._rounds.pool), self._pool.total, list(self._pool.reports))

    def restore_open_round(self, found: OpenRound, keeps_later: bool = False) -> None:
        """Continues with an open round in the place of the one that is open, or before what is decided of that and not
        handled yet."""
        with self._lock:
            self._rounds.pool = [*found.counted, *(self._rounds.pool if keeps_later else ())]
            self._name_after(found.counted)
        self._pool.restore(found.total, found.reports)

    def replay_pooled(self, counted: Counted, own: Sequence[torch.Tensor | None], report: PooledReport | None) -> None:
        """Adds gradients to the open round, as it was done before this owner has started again."""
        self._rounds.pool.append(counted)
        self._name_after([counted])
        self._pool.total = self._pool.sum_with(own, counted.weight)
        if report is not None:
            self._pool.add_again(report)

    def _name_after(self, counted: Sequence[Counted]) -> None:
        """Gives no later offer the name of one of these."""
        used = max((each.key.number for each in counted), default=0)
        self._numbers = itertools.count(max(next(self._numbers), used + 1))

    def replay_close(self, version: int, divisor: int) -> None:
        """Steps with the open round, in the same way."""
        counted, self._rounds.pool = tuple(self._rounds.pool), []
        self._close(Close(version, counted, divisor))
