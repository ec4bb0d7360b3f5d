"""The rules by which rounds follow each policy, and what they know of each trainer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ps_service.policies.offers import Offer, OfferKey, Reason
from ps_wire.policies import Apply, Async, BoundedStaleness, Compensate, Policy, Quorum, Reject, Scale, Stale, Sync

OLDEST_COMPENSATED: Final = 16
"""The largest staleness that is compensated; older gradients are dropped, because that version is not kept."""


class Waiting(NamedTuple):
    """An offer that is in no round yet, and its place among all offers."""

    arrival: int
    offer: Offer


class Ahead(NamedTuple):
    """An applied offer of a trainer that is ahead of others: its clock after it, and the version after its step."""

    key: OfferKey
    clock: int
    version: int


class Member:
    """A trainer that uses the optimizer, with its offers that are not answered, oldest first. `clock` counts its offers
    that have counted or were dropped, from the clock of the slowest when it joined."""

    def __init__(self, clock: int) -> None:
        self.offers: deque[Waiting] = deque()
        self.ahead: deque[Ahead] = deque()
        self.clock = clock


Members = Mapping[bytes, Member]
"""The trainers that use the optimizer, by id."""


class Rule:
    """What rounds ask of a policy. This one takes every gradient by itself, and lets a trainer be `bound` steps ahead.
    Where it `answers_at_once`, trainers go on before their round is complete, which it is with `count` gradients."""

    def __init__(
        self,
        stale: Stale,
        *,
        is_mean: bool = True,
        bound: float = math.inf,
        answers_at_once: bool = False,
        count: int = 1,
    ) -> None:
        self.is_mean = is_mean
        self.bound = bound
        self.answers_at_once = answers_at_once
        self.count = count
        self._stale = stale
        self._oldest = stale.after if isinstance(stale, Reject) else math.inf
        if isinstance(stale, Compensate):
            self._oldest = OLDEST_COMPENSATED

    def weight(self, staleness: int) -> float:
        """What a gradient of this staleness is multiplied with."""
        return 1.0 / staleness if isinstance(self._stale, Scale) and staleness > 1 else 1.0

    def refusal(self, staleness: int) -> Reason | None:
        """Why an offer of this staleness does not count; None if it may."""
        return Reason.STALE if staleness > self._oldest else None

    def take(self, members: Members, most: int) -> Sequence[Offer] | None:
        """Removes the offers of the next round from the members, of which there were `most`; None if not complete."""
        return _first(members, 1) or None

    def waiting_for(self, members: Members) -> list[bytes]:
        """The members that an offer waits for."""
        if not any(member.ahead for member in members.values()):
            return []
        slowest = min(member.clock for member in members.values())
        return [trainer for trainer, member in members.items() if member.clock == slowest]


class TogetherRule(Rule):
    """Takes the first gradients of several trainers for a round, one of each: of all members, if `trainers` is None.
    Those of the others, which come late, may be dropped."""

    def __init__(self, trainers: int | None, reduce: str, stale: Stale, drops_late: bool = False) -> None:
        super().__init__(stale, is_mean=reduce == "mean")
        self._trainers = trainers
        self._drops_late = drops_late

    def refusal(self, staleness: int) -> Reason | None:
        return Reason.LATE if self._drops_late and staleness > 0 else super().refusal(staleness)

    def take(self, members: Members, most: int) -> Sequence[Offer] | None:
        needed = len(members)
        if self._trainers is not None:
            needed = self._trainers if most < self._trainers else min(self._trainers, needed)
        ready = sum(bool(member.offers) for member in members.values())
        return _first(members, needed) if 0 < needed <= ready else None

    def waiting_for(self, members: Members) -> list[bytes]:
        if not any(member.offers for member in members.values()):
            return []
        return [trainer for trainer, member in members.items() if not member.offers]


def _first(members: Members, count: int) -> list[Offer]:
    """Removes the first offers of members, one of each: those that arrived first."""
    ready = [member for member in members.values() if member.offers]
    ready.sort(key=lambda member: member.offers[0].arrival)
    return [member.offers.popleft().offer for member in ready[:count]]


def rule_of(policy: Policy) -> Rule:
    """The rule of a policy."""
    if isinstance(policy, Sync):
        return TogetherRule(policy.trainers, policy.reduce, Apply())
    if isinstance(policy, BoundedStaleness):
        return Rule(policy.stale, bound=policy.bound)
    if isinstance(policy, Quorum):
        if policy.of is None:
            is_mean = policy.reduce == "mean"
            return Rule(policy.stale, is_mean=is_mean, answers_at_once=True, count=policy.count)
        return TogetherRule(policy.count, policy.reduce, policy.stale, drops_late=policy.late == "drop")
    assert isinstance(policy, Async)
    return Rule(policy.stale)
