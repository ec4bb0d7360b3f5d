"""Checks the rounds of all policies in thousands of simulated orders of messages, deaths, joins and resends."""

from __future__ import annotations

import pytest

from ps_service.policies.offers import Close, Reason
from ps_wire.policies import Async, BoundedStaleness, Policy, Quorum, Reject, Scale, Sync
from tests.ps_service.policies.simulation import Simulation

POLICIES: dict[str, Policy] = {
    "async": Async(),
    "async, scaled": Async(Scale()),
    "async, rejected": Async(Reject(2)),
    "sync of 3": Sync(3),
    "sync of all": Sync(reduce="sum"),
    "bounded by 0": BoundedStaleness(0),
    "bounded by 3": BoundedStaleness(3, Reject(4)),
    "quorum of any": Quorum(5, reduce="sum"),
    "2 of 4, late ones dropped": Quorum(2, of=4),
    "3 of 4, late ones count next": Quorum(3, of=4, late="next", stale=Scale()),
}

ORDERS = 30
"""Simulated orders for each policy."""


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_no_order_loses_a_gradient_or_counts_it_twice(policy: Policy) -> None:
    closes = 0
    for seed in range(ORDERS):
        simulation = Simulation(policy, [], seed, trainers=1 + seed % 5)
        simulation.run(60)
        closes += len(simulation.closes)
    assert closes > ORDERS


def test_no_order_of_changes_of_the_policy_does() -> None:
    policies, closes = list(POLICIES.values()), 0
    for seed in range(2 * ORDERS):
        simulation = Simulation(policies[seed % len(policies)], policies, seed, trainers=3)
        simulation.run(80)
        closes += len(simulation.closes)
    assert closes > 10 * ORDERS


@pytest.mark.parametrize("trainers", [None, 3])
def test_a_synchronous_round_takes_one_gradient_of_each_trainer(trainers: int | None) -> None:
    for seed in range(ORDERS):
        simulation = Simulation(Sync(trainers), [], seed, trainers=4)
        simulation.run(60)
        for closed in simulation.closes:
            assert len({each.key.trainer for each in closed.counted}) == len(closed.counted) == closed.divisor
            assert len(closed.counted) <= (trainers or 8)


def test_bounded_staleness_keeps_trainers_together() -> None:
    for seed in range(ORDERS):
        bound = seed % 4
        simulation = Simulation(BoundedStaleness(bound), [], seed, trainers=4)
        for _ in range(80):
            (simulation.compute if simulation.random.random() < 0.5 else simulation.deliver)()
            clocks = [member.clock for member in simulation.rounds.members.values()]
            assert not clocks or max(clocks) - min(clocks) <= bound + 1


def test_the_quorum_counts_exactly_that_many() -> None:
    for seed in range(ORDERS):
        simulation = Simulation(Quorum(5), [], seed, trainers=3)
        simulation.run(80)
        assert all(len(closed.counted) == 5 for closed in simulation.closes)


def test_dropped_gradients_have_a_reason_that_is_true() -> None:
    for seed in range(ORDERS):
        simulation = Simulation(Quorum(2, of=4), [], seed, trainers=4)
        simulation.run(60)
        late = [key for key, reason in simulation.dropped.items() if reason is Reason.LATE]
        assert all(simulation.offered[key].read < simulation.rounds.version for key in late)
        counted = [each for closed in simulation.closes if isinstance(closed, Close) for each in closed.counted]
        assert all(each.staleness == 0 for each in counted)
