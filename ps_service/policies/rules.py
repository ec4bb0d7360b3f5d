"""The rules by which rounds follow each policy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from ps_service.policies.offers import Offer, Reason
from ps_wire.policies import Apply, Async, BoundedStaleness, Compensate, Policy, Quorum, Reject, Scale, Stale, Sync

OLDEST_COMPENSATED: Final = 16
"""The largest staleness that is compensated; older gradients are dropped, because that version is not kept."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.policies.members import Member


class _Rounds(Protocol):
    """What a rule asks of the rounds that follow it; see `Rounds`."""

    members: dict[bytes, Member]
    most: int

    def staleness(self, offer: Offer) -> int:
        """The number of steps since the reading of an offer's gradient."""

    def slowest(self) -> int:
        """The clock of the slowest member."""


class Rule:
    """What rounds ask of a policy. This one takes every gradient by itself, as `Async` does.

    Args:
        stale: What becomes of stale gradients.

    Attributes:
        answers_at_once: Whether a trainer goes on before its round is complete.
        count: How many gradients complete a round of trainers that go on at once.
        is_mean: Whether a step takes the mean of its gradients, and not the sum.
        bound: The most steps that a trainer may be ahead of the slowest.
    """

    answers_at_once = False
    count = 1
    is_mean = True
    bound: float = math.inf

    def __init__(self, stale: Stale) -> None:
        self._stale = stale
        self._oldest = stale.after if isinstance(stale, Reject) else math.inf
        if isinstance(stale, Compensate):
            self._oldest = OLDEST_COMPENSATED

    def weight(self, staleness: int) -> float:
        """What a gradient of this staleness is multiplied with."""
        return 1.0 / staleness if isinstance(self._stale, Scale) and staleness > 1 else 1.0

    def refusal(self, rounds: _Rounds, offer: Offer) -> Reason | None:
        """Why an offer does not count; None if it may."""
        return Reason.STALE if rounds.staleness(offer) > self._oldest else None

    def take(self, rounds: _Rounds) -> Sequence[Offer] | None:
        """Removes the offers of the next round from their members; None if it is not complete."""
        return _first(rounds, 1) or None

    def waiting_for(self, rounds: _Rounds) -> list[bytes]:
        """The members that an offer waits for."""
        if not any(member.ahead for member in rounds.members.values()):
            return []
        slowest = rounds.slowest()
        return [trainer for trainer, member in rounds.members.items() if member.clock == slowest]


class TogetherRule(Rule):
    """Takes one gradient of each of several trainers for a round.

    Args:
        count: How many; None for all members.
        is_mean: Whether a step takes the mean.
        stale: What becomes of stale gradients.
    """

    def __init__(self, count: int | None, is_mean: bool, stale: Stale) -> None:
        super().__init__(stale)
        self._trainers = count
        self.is_mean = is_mean

    def take(self, rounds: _Rounds) -> Sequence[Offer] | None:
        ready = sum(bool(member.offers) for member in rounds.members.values())
        needed = self._needed(rounds)
        return _first(rounds, needed) if 0 < needed <= ready else None

    def _needed(self, rounds: _Rounds) -> int:
        there = len(rounds.members)
        if self._trainers is None:
            return there
        return self._trainers if rounds.most < self._trainers else min(self._trainers, there)

    def waiting_for(self, rounds: _Rounds) -> list[bytes]:
        if not any(member.offers for member in rounds.members.values()):
            return []
        return [trainer for trainer, member in rounds.members.items() if not member.offers]


class BackupRule(TogetherRule):
    """Takes the first gradients of several trainers for a round; those of the others come late.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: Quorum) -> None:
        super().__init__(policy.count, policy.reduce == "mean", policy.stale)
        self._drops = policy.late == "drop"

    def refusal(self, rounds: _Rounds, offer: Offer) -> Reason | None:
        if self._drops and rounds.staleness(offer) > 0:
            return Reason.LATE
        return super().refusal(rounds, offer)


class AnybodyRule(Rule):
    """Takes gradients of any trainers, who go on at once."""

    answers_at_once = True

    def __init__(self, policy: Quorum) -> None:
        super().__init__(policy.stale)
        self.count = policy.count
        self.is_mean = policy.reduce == "mean"


class BoundedRule(Rule):
    """Takes every gradient by itself, and keeps trainers close together."""

    def __init__(self, policy: BoundedStaleness) -> None:
        super().__init__(policy.stale)
        self.bound = policy.bound


def _first(rounds: _Rounds, count: int) -> list[Offer]:
    """Removes the first offers of members, one of each: those that arrived first."""
    ready = sorted((member for member in rounds.members.values() if member.offers), key=_arrival)
    return [member.offers.popleft().offer for member in ready[:count]]


def _arrival(member: Member) -> int:
    return member.offers[0].arrival


def rule_of(policy: Policy) -> Rule:
    """The rule of a policy."""
    if isinstance(policy, Sync):
        return TogetherRule(policy.trainers, policy.reduce == "mean", Apply())
    if isinstance(policy, BoundedStaleness):
        return BoundedRule(policy)
    if isinstance(policy, Quorum):
        return AnybodyRule(policy) if policy.of is None else BackupRule(policy)
    assert isinstance(policy, Async)
    return Rule(policy.stale)
