"""The rules by which rounds follow each policy, and what they know of each trainer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(eq=False, kw_only=True)
class Rule:
    """What rounds ask of a policy. This one takes every gradient by itself, and lets a trainer be `bound` steps ahead.
    Where it `answers_at_once`, trainers go on before their round is complete, which it is with `count` gradients."""

    stale: Stale
    is_mean: bool = True
    bound: float = math.inf
    answers_at_once: bool = False
    count: int = 1

    def weight(self, staleness: int) -> float:
        """What a gradient of this staleness is multiplied with."""
        return 1.0 / staleness if isinstance(self.stale, Scale) and staleness > 1 else 1.0

    def refusal(self, staleness: int) -> Reason | None:
        """Why an offer of this staleness does not count; None if it may."""
        oldest = OLDEST_COMPENSATED if isinstance(self.stale, Compensate) else math.inf
        if isinstance(self.stale, Reject):
            oldest = self.stale.after
        return Reason.STALE if staleness > oldest else None

    def take(self, members: Members, most: int) -> Sequence[Offer] | None:
        """Removes the offers of the next round from the members, of which there were `most`; None if not complete."""
        return _first(members, 1) or None

    def waiting_for(self, members: Members) -> list[bytes]:
        """The members that an offer waits for."""
        if not any(member.ahead for member in members.values()):
            return []
        slowest = min(member.clock for member in members.values())
        return [trainer for trainer, member in members.items() if member.clock == slowest]


@dataclass(eq=False, kw_only=True)
class TogetherRule(Rule):
    """Takes the first gradients of several trainers for a round, one of each: of all members, if `trainers` is None.
    Those of the others, which come late, may be dropped."""

    trainers: int | None
    drops_late: bool = False

    def refusal(self, staleness: int) -> Reason | None:
        return Reason.LATE if self.drops_late and staleness > 0 else super().refusal(staleness)

    def take(self, members: Members, most: int) -> Sequence[Offer] | None:
        needed = len(members)
        if self.trainers is not None:
            needed = self.trainers if most < self.trainers else min(self.trainers, needed)
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
        return TogetherRule(stale=Apply(), is_mean=policy.reduce == "mean", trainers=policy.trainers)
    if isinstance(policy, BoundedStaleness):
        return Rule(stale=policy.stale, bound=policy.bound)
    if isinstance(policy, Quorum):
        is_mean, late = policy.reduce == "mean", policy.late == "drop"
        if policy.of is None:
            return Rule(stale=policy.stale, is_mean=is_mean, answers_at_once=True, count=policy.count)
        return TogetherRule(stale=policy.stale, is_mean=is_mean, trainers=policy.count, drops_late=late)
    assert isinstance(policy, Async)
    return Rule(stale=policy.stale)
