"""Checks rounds over several owners in thousands of simulated orders of messages, deaths, joins and resends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ps_service.policies.coordinator import Coordinator
from ps_service.policies.decisions import Decision, DecisionLog, Emptied, Entry, Left
from ps_service.policies.follower import Follower, Gap
from ps_service.policies.offers import Event, Offer, OfferKey, Pooled
from ps_wire.policies import Policy
from tests.ps_service.policies.spanning_simulation import SpanningSimulation
from tests.ps_service.policies.test_simulation import POLICIES

ORDERS = 8
"""Simulated orders for each policy."""


@pytest.mark.parametrize("restarts", [False, True], ids=["", "followers restart"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_all_owners_take_the_same_gradients(policy: Policy, restarts: bool) -> None:
    closes = 0
    for seed in range(ORDERS):
        simulation = SpanningSimulation(policy, [], seed, 1 + seed % 4, restarts)
        simulation.run(250)
        closes += simulation.closes
    assert closes > 2 * ORDERS


def test_all_owners_change_the_policy_between_the_same_rounds() -> None:
    policies, closes = list(POLICIES.values()), 0
    for seed in range(3 * ORDERS):
        simulation = SpanningSimulation(policies[seed % len(policies)], policies, seed, 3, restarts=seed % 3 == 2)
        simulation.run(250)
        closes += simulation.closes
    assert closes > 10 * ORDERS


# Mistakes that the simulation has to find


class Twice(Follower):
    """Carries out the last decision again if it comes again."""

    def settle(self, base: int, entries: Sequence[Entry]) -> list[Decision | Gap]:
        if entries and entries[0].number == self.applied:
            self.applied -= 1
        return super().settle(base, entries)


class FreesLaterJoins(Follower):
    """Frees what a trainer holds that has left and come back."""

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Left):
            for key in [key for key in self.held if key.trainer == decision.trainer]:
                del self.held[key]
        super()._carry_out(decision)


class HoldsForTheDead(Follower):
    """Holds what comes after its trainer has left or has given it up."""

    def check(self, key: OfferKey, nbytes: int, most_bytes: int) -> None:
        pass


class FreesPooled(Follower):
    """Does not count gradients of an open round as used, and frees them when their trainer leaves."""

    def _carry_out(self, decision: Decision) -> None:
        if not isinstance(decision, Pooled):
            super()._carry_out(decision)


class KeepsRefused(Follower):
    """Keeps the gradients of an open round whose step has failed."""

    def _carry_out(self, decision: Decision) -> None:
        if not isinstance(decision, Emptied):
            super()._carry_out(decision)


class ForgetsTooEarly(DecisionLog):
    """Forgets what one of the other owners has carried out."""

    def note(self, applied: object) -> None:
        super().note(dict.fromkeys(self.applied, max(applied.values(), default=0)))  # type: ignore[attr-defined]


class WithForgetfulLog(Coordinator):
    """Forgets decisions too early."""

    def __init__(self, policy: Policy, followers: Sequence[str], version: int = 0) -> None:
        super().__init__(policy, followers, version)
        self.log = ForgetsTooEarly(followers)


class SaysNothingOfLeaving(Coordinator):
    """Does not tell that a trainer has left."""

    def leave(self, trainer: bytes) -> list[Event]:
        self.epochs.pop(trainer, 0)
        return self._noted(super().leave(trainer))


class ForgetsWithdrawn(Coordinator):
    """Takes offers that were withdrawn before they came."""

    def withdraw(self, key: OfferKey) -> list[Event]:
        events = super().withdraw(key)
        self._withdrawn.clear()
        return events


class SaysNothingOfWithdrawn(Coordinator):
    """Does not tell of offers that were withdrawn before they came."""

    def withdraw(self, key: OfferKey) -> list[Event]:
        before = self.log.number
        events = super().withdraw(key)
        if not events and self.log.number > before:
            self.log._entries.pop()
            self.log.number -= 1
        return events


class TakesEarlierJoins(Coordinator):
    """Takes offers that a trainer had made before it left."""

    def offer(self, offer: Offer) -> list[Event]:
        self.epochs[offer.key.trainer] = offer.key.epoch
        return super().offer(offer)


MUTANTS: list[tuple[type[Coordinator], type[Follower]]] = [
    *((Coordinator, each) for each in (Twice, FreesLaterJoins, HoldsForTheDead, FreesPooled, KeepsRefused)),
    *((each, Follower) for each in (WithForgetfulLog, SaysNothingOfLeaving, ForgetsWithdrawn)),
    *((each, Follower) for each in (SaysNothingOfWithdrawn, TakesEarlierJoins)),
]


@pytest.mark.parametrize(("coordinator", "follower"), MUTANTS, ids=lambda each: each.__name__)
def test_the_simulation_finds_mistakes(coordinator: type[Coordinator], follower: type[Follower]) -> None:
    policies = list(POLICIES.values())
    with pytest.raises(AssertionError):
        for seed in range(107, 227):  # of these the first few show all of them
            policy = policies[seed % len(policies)]
            SpanningSimulation(policy, policies, seed, 3, False, coordinator, follower).run(250)
