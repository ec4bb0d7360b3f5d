"""The rounds of an optimizer over several owners, on the owner that decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ps_service.policies.decisions import Changed, DecisionLog, Emptied, Left, Released
from ps_service.policies.follower import Recent
from ps_service.policies.offers import Close, Dropped, Event, Offer, OfferKey, Pooled, Reason
from ps_service.policies.rounds import Rounds

if TYPE_CHECKING:
    from ps_wire.policies import Policy

_MOST_LOST_JOINS: Final = 1 << 20
"""More joins than an owner takes between two checkpoints, so that no epoch is given out twice."""


class Coordinator(Rounds):
    """Rounds whose decisions other owners carry out, too: the coordinator of a two-phase commit. `log` has the
    decisions that these may not have, and `epochs` the number of the join of each member, out of `joins`."""

    def __init__(self, policy: Policy, followers: Iterable[str], version: int = 0) -> None:
        super().__init__(policy, version)
        self.log = DecisionLog(followers)
        self.epochs: dict[bytes, int] = {}
        self.joins = 0
        # Those that come late are refused.
        self._withdrawn: Recent[OfferKey] = Recent()

    def join(self, trainer: bytes) -> list[Event]:
        if trainer not in self.epochs:
            self.joins += 1
            self.epochs[trainer] = self.joins
        return super().join(trainer)

    def leave(self, trainer: bytes) -> list[Event]:
        epoch = self.epochs.pop(trainer, 0)
        if epoch:
            # Before the rounds that are complete without it: none of its gradients is in them.
            self.log.add(Left(trainer, epoch))
        return self._noted(super().leave(trainer))

    def offer(self, offer: Offer) -> list[Event]:
        """A member offers a gradient. It does not count if it was withdrawn, or is of an earlier join."""
        if offer.key.epoch != self.epochs.get(offer.key.trainer):
            return [Dropped(offer.key, self.staleness(offer), Reason.OUTDATED)]
        if offer.key in self._withdrawn:
            return [Dropped(offer.key, self.staleness(offer), Reason.WITHDRAWN)]
        return self._noted(super().offer(offer))

    def withdraw(self, key: OfferKey) -> list[Event]:
        """Takes an offer back that is in no round yet. One that has not come yet will not count."""
        events = super().withdraw(key)
        if not events and key.epoch == self.epochs.get(key.trainer):
            # If it is in a round, the other owners have used it by then, and this has no effect.
            self.log.add(Released(key))
            self._withdrawn[key] = 1
        return self._noted(events)

    def change(self, policy: Policy) -> list[Event]:
        ended = self.finish_round()
        self.log.add(Changed(policy))
        return [*ended, *self._noted(super().change(policy))]

    def finish_round(self) -> list[Event]:
        return self._noted(self.end_round())

    def take_back(self, decisions: Sequence[Close | Pooled], keys: Sequence[OfferKey], is_pool: bool = False) -> None:
        """Has decisions that nobody was told not be made: the gradients of these offers are in no round. `is_pool` says
        that they are those in the sum of the open round."""
        instead: list[Released | Emptied] = [Emptied()] if is_pool else [*map(Released, keys)]
        for decision in decisions:
            # The numbers go on: if nothing is left to release, something is that is not held any more.
            of = decision.counted if isinstance(decision, Close) else (decision.counted,)
            by = instead.pop() if instead else Released(of[0].key)
            self.log.replace(decision, by)
        for each in instead:
            self.log.add(each)

    def give_up(self) -> list[Event]:
        """Ends the open round, and drops or answers the offers that wait, because this owner stops."""
        events = self.finish_round()
        for key in self.waiting_offers():
            events.extend(self.withdraw(key))
        return events

    def restore(self, version: int, joins: int, epochs: Mapping[bytes, int]) -> None:
        """Continues from the state of a checkpoint, which may be older than what other owners know."""
        self.version = version
        self.joins = joins + _MOST_LOST_JOINS
        self.epochs.update(epochs)

    def rejoin(self, epochs: Mapping[bytes, int]) -> None:
        """Continues with the numbers of joins from before this owner has started again."""
        self.epochs.update(epochs)
        self.joins = max(self.joins, *epochs.values(), 0)

    def _noted(self, events: list[Event]) -> list[Event]:
        """Appends what is decided to the log."""
        for event in events:
            if isinstance(event, (Close, Pooled)):
                self.log.add(event)
            elif isinstance(event, Dropped) and event.reason is not Reason.LEFT:
                self.log.add(Released(event.key))
        return events
