"""What the rounds of an optimizer tell the durable log, and their state as far as it has that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ps_service.policies.membership import Departed, Joined, PolicySet
from ps_service.policies.offers import Dropped, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from ps_service.policies.decisions import Decision
    from ps_service.policies.follower import Gap
    from ps_service.policies.membership import Moved
    from ps_service.policies.offers import Close, Counted, Pooled
    from ps_service.training.round_gradients import Contribution, RoundGradients
    from ps_service.training.round_steps import RoundSteps
    from ps_wire.policies import Policy
    from ps_wire.reported import Reported


class PooledReport(NamedTuple):
    """The values that came with a gradient of an open round."""

    trainer: bytes
    values: Mapping[str, Reported]


@dataclass
class OpenRound:
    """The gradients of an open round whose trainers have gone on: which they are, their sum, and their values."""

    counted: list[Counted] = field(default_factory=list)
    total: Sequence[torch.Tensor | None] | None = None
    reports: list[PooledReport] = field(default_factory=list)


@dataclass
class SettledRounds:
    """The state of rounds after the events that were handled. The rounds themselves are ahead of it: they know of
    offers whose round is complete, and is not applied yet. `unlogged` are the trainers whose clocks no record has, and
    `epochs` the numbers of their joins if the rounds are over several owners. Of the decisions about such rounds, other
    owners may be told those up to the number `decided`."""

    policy: Policy
    clocks: dict[bytes, int]
    most: int
    open: OpenRound
    unlogged: set[bytes] = field(default_factory=set)
    epochs: dict[bytes, int] = field(default_factory=dict)
    decided: int = 0

    def move(self, event: Moved | Dropped) -> None:
        """Trainers or the policy have changed, or an offer was refused, which counts for the clock of its trainer."""
        if isinstance(event, Joined):
            self.clocks[event.trainer], self.most = event.clock, event.most
            self.epochs[event.trainer] = event.epoch
            self.unlogged.add(event.trainer)
        elif isinstance(event, Departed):
            self.clocks.pop(event.trainer, None)
            self.epochs.pop(event.trainer, None)
            self.unlogged.discard(event.trainer)
        elif isinstance(event, PolicySet):
            self.policy, self.most = event.policy, event.most
            self.unlogged.update(self.clocks)
        elif isinstance(event, Dropped) and event.reason in (Reason.LATE, Reason.STALE):
            self.count(event.key.trainer)

    def count(self, trainer: bytes) -> None:
        """An offer of a trainer has counted, or was refused."""
        if trainer in self.clocks:
            self.clocks[trainer] += 1
            self.unlogged.add(trainer)

    def add(self, counted: Counted, total: Sequence[torch.Tensor | None], report: PooledReport | None) -> None:
        """A gradient is in the open round from now on, which has this sum with it."""
        self.open.counted.append(counted)
        self.open.total = total
        if report is not None:
            self.open.reports.append(report)
        self.count(counted.key.trainer)

    def close(self, close: Close) -> None:
        """A round is over."""
        if self.open.total is None:
            for each in close.counted:
                self.count(each.key.trainer)
        self.open = OpenRound()


class RoundJournal(Protocol):
    """The log, as rounds see it. Its methods are called in the order of the events, each by one thread at a time, and
    block for the disk."""

    settled: SettledRounds

    def move(self, event: Moved | Dropped) -> None:
        """Notes what is no gradient that counts. Does not raise: what cannot be written is written with the next."""

    def pool(
        self, event: Pooled, own: Sequence[torch.Tensor | None], total: Sequence[torch.Tensor | None], of: Contribution
    ) -> None:
        """Notes a gradient whose trainer goes on before its round is complete, and the sum of the round with it. Raises
        `StorageError` if it cannot be written; it does not count then."""

    def close(self, steps: RoundSteps, gradients: RoundGradients, close: Close) -> None:
        """Makes the step of a round, and notes it. Raises as `RoundSteps.apply`, and `StorageError`: if there is no
        room for it, before anything has changed."""

    def untold(self, event: Close | Pooled) -> list[Close | Pooled]:
        """The decisions about a step of rounds over several owners, or a gradient, if they are not in the log."""

    def follows(self, steps: RoundSteps) -> FollowingJournal:
        """What notes the rounds that another owner decides."""


class FollowingNotes(Protocol):
    """What is told of a decision while it is carried out."""

    def steps(self, optimizer: Any, version: int, present: Any) -> None:
        """As `Note`."""

    def adds(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Gradients are added to the sum of the open round."""


class FollowingJournal(Protocol):
    """The log, as rounds see it that another owner decides."""

    def carry_out(self, number: int, decision: Decision | Gap, work: CarryOut) -> None:
        """Does the work of a decision with that number, and notes it, with the error that the work returns, empty if
        there is none. Does not raise: what cannot be written is written before all else."""


CarryOut = Callable[["Decision | Gap", FollowingNotes], str]
"""Carries out a decision."""
