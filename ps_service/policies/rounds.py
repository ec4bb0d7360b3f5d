"""The rounds of an optimizer: which gradients make up each step, and when their trainers go on."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ps_service.policies.offers import Answer, Close, Counted, Dropped, Event, Offer, OfferKey, Pooled, Reason
from ps_service.policies.rules import Ahead, Member, Waiting, rule_of
from ps_wire.errors import RAN_OUT, InvalidArgumentError

if TYPE_CHECKING:
    from ps_wire.policies import Policy

_MORE: Final = "more trainers to join"


class Rounds:
    """The rounds of one optimizer, which are told what happens, and return events. `version` counts its steps.
    `members` are in the order in which they came, and at most so many at once since the policy was set. `pool` has the
    offers of the open round that are answered already, oldest first."""

    def __init__(self, policy: Policy, version: int = 0) -> None:
        self.policy = policy
        self.version = version
        self.members: dict[bytes, Member] = {}
        self.most = 0
        self.pool: list[Counted] = []
        self._rule = rule_of(policy)
        self._arrivals = itertools.count()

    def join(self, trainer: bytes) -> list[Event]:
        """A trainer uses the optimizer from now on. Does nothing if it does already."""
        self._member(trainer)
        return []

    def leave(self, trainer: bytes) -> list[Event]:
        """A trainer has left, or is lost: its waiting offers are dropped, and no round waits for it."""
        gone = self.members.pop(trainer, None)
        if gone is None:
            return []
        answers: list[Event] = [Answer(ahead.key, ahead.version) for ahead in gone.ahead]
        dropped: list[Event] = [self._dropped(waiting.offer, Reason.LEFT) for waiting in gone.offers]
        return [*answers, *dropped, *self._advance()]

    def offer(self, offer: Offer) -> list[Event]:
        """A trainer offers a gradient, and joins if it has not. Raises if it was read from a version to come."""
        if offer.read > self.version:
            raise InvalidArgumentError(f"a gradient was read from version {offer.read}; this is {self.version}")
        self._member(offer.key.trainer).offers.append(Waiting(next(self._arrivals), offer))
        return self._advance()

    def withdraw(self, key: OfferKey) -> list[Event]:
        """A trainer does not wait for an offer any more. The offer is taken back, if it is in no round yet."""
        member = self.members.get(key.trainer)
        if member is None:
            return []
        for waiting in member.offers:
            if waiting.offer.key == key:
                member.offers.remove(waiting)
                return [self._dropped(waiting.offer, Reason.WITHDRAWN)]
        for ahead in member.ahead:
            if ahead.key == key:
                member.ahead.remove(ahead)
                return [Answer(key, ahead.version)]
        return []

    def change(self, policy: Policy) -> list[Event]:
        """Follows another policy from now on. The pool of the open round makes a step; offers that wait count anew."""
        events = self.end_round()
        self.policy, self._rule = policy, rule_of(policy)
        self.most = len(self.members)
        return [*events, *self._advance()]

    def end_round(self) -> list[Event]:
        """Closes the open round with the offers in it that are answered already."""
        if not self.pool:
            return []
        pool, self.pool = self.pool, []
        return [self._close(pool)]

    def finish_round(self) -> list[Event]:
        """As `end_round`, when nothing else happens."""
        return self.end_round()

    def restore_members(self, clocks: Mapping[bytes, int], most: int) -> None:
        """Continues with the clocks of the members of a checkpoint, so that no round is complete without them."""
        for trainer, clock in clocks.items():
            self._member(trainer).clock = clock
        self.most = max(self.most, most)

    def waiting_offers(self) -> list[OfferKey]:
        """The offers that are in no round yet, or whose trainers wait although they are applied."""
        found: list[OfferKey] = []
        for member in self.members.values():
            found.extend(each.offer.key for each in member.offers)
            found.extend(each.key for each in member.ahead)
        return found

    def waiting_for(self) -> list[bytes]:
        """The members that an offer waits for now; empty if none waits."""
        return self._rule.waiting_for(self.members)

    def staleness(self, offer: Offer) -> int:
        """The number of steps since the reading of an offer's gradient."""
        return self.version - offer.read

    def _slowest(self) -> int:
        """The clock of the slowest member."""
        return min((member.clock for member in self.members.values()), default=0)

    def _member(self, trainer: bytes) -> Member:
        member = self.members.get(trainer)
        if member is None:
            member = self.members[trainer] = Member(self._slowest())
            self.most = max(self.most, len(self.members))
        return member

    def _advance(self) -> list[Event]:
        """Closes all rounds that are complete, and answers the trainers that may go on."""
        events = self._refuse()
        while (taken := self._rule.take(self.members, self.most)) is not None:
            events.extend(self._run(taken))
            events.extend(self._refuse())
        events.extend(self._catch_up())
        return events

    def _refuse(self) -> list[Event]:
        """Drops the waiting offers that the rule refuses. It may refuse more after each round."""
        events: list[Event] = []
        for member in self.members.values():
            kept: deque[Waiting] = deque()
            for waiting in member.offers:
                reason = self._rule.refusal(self.staleness(waiting.offer))
                if reason is None:
                    kept.append(waiting)
                else:
                    member.clock += 1
                    events.append(self._dropped(waiting.offer, reason))
            member.offers = kept
        return events

    def _run(self, taken: Iterable[Offer]) -> list[Event]:
        """Counts offers that a rule has taken; closes the round, if they complete it."""
        rule, events = self._rule, list[Event]()
        counted = []
        for offer in taken:
            staleness = self.staleness(offer)
            counted.append(Counted(offer.key, staleness, rule.weight(staleness)))
            self.members[offer.key.trainer].clock += 1
        if rule.answers_at_once:
            for each in counted:
                self.pool.append(each)
                completes = len(self.pool) >= rule.count
                events.append(Pooled(each, self.version, completes))
                if completes:
                    events.extend([*self.end_round(), Answer(each.key, self.version)])
            return events
        events.append(self._close(counted))
        for each in counted:
            member = self.members[each.key.trainer]
            member.ahead.append(Ahead(each.key, member.clock, self.version))
        return events

    def _close(self, counted: Iterable[Counted]) -> Close:
        counted = tuple(counted)
        self.version += 1
        return Close(self.version, counted, len(counted) if self._rule.is_mean else 1)

    def _catch_up(self) -> list[Event]:
        slowest, events = self._slowest(), list[Event]()
        for member in self.members.values():
            while member.ahead and member.ahead[0].clock - slowest <= self._rule.bound:
                ahead = member.ahead.popleft()
                events.append(Answer(ahead.key, ahead.version))
        return events

    def _dropped(self, offer: Offer, reason: Reason) -> Dropped:
        return Dropped(offer.key, self.staleness(offer), reason)


def missing(rounds: Rounds, describe: Callable[[bytes], str], most: int) -> list[str]:
    """Whom an open round waits for: at most `most` trainers, or others that have not come yet."""
    late = [describe(each) for each in rounds.waiting_for()[:most]]
    return late or ([_MORE] if rounds.waiting_offers() else [])


def ran_out(title: str, seconds: float, rounds: Rounds, describe: Callable[[bytes], str]) -> str:
    """The error of a step that has waited in vain in what `title` says."""
    late = ", ".join(describe(each) for each in rounds.waiting_for())
    if late:
        whom = f"trainer {late}"
    else:
        there = [describe(each) for each in rounds.members]
        whom = f"{_MORE}; there {'is' if len(there) == 1 else 'are'} only {', '.join(there)}"
    return f"{RAN_OUT}: {title} has waited {seconds:g} s for {whom}"
