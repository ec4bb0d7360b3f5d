"""Tests of rounds in random orders in which gradients are read and offered while rounds are still to be applied."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch import optim

from ps_service.passes.staleness import FirstReadings
from ps_service.training.aggregator import Aggregator
from ps_service.training.event_queue import EventQueue
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.round_gradients import Contribution
from ps_service.training.waiting_offers import Outcome
from ps_wire.policies import Async, BoundedStaleness, Policy, Quorum, Reject, Scale
from tests.integration.staleness_simulation import Arrival, Fate, simulate
from tests.ps_service.training.owned import Owner

TRAINERS, ORDERS, ACTIONS = 5, 15, 120

POLICIES = [
    Async(),
    Async(Scale()),
    Async(Reject(0)),
    BoundedStaleness(2, Reject(1)),
    Quorum(3),
    Quorum(2, stale=Reject(0)),
    Quorum(2, of=TRAINERS),
    Quorum(1, of=TRAINERS),
    Quorum(3, of=TRAINERS, late="next", stale=Scale()),
]


class Later(EventQueue):
    """Events that are handled one by one, when the test says so."""

    def __init__(self, queue: EventQueue) -> None:
        super().__init__(queue._handle)
        self.waiting: deque[Any] = deque()

    def extend(self, events: Iterable[Any]) -> None:
        self.waiting.extend(events)

    def go_on(self) -> None:
        """Does nothing: other requests come before the thread that handles events."""

    def handle_one(self) -> None:
        if self.waiting:
            self._handle(self.waiting.popleft())


class Trainers:
    """Trainers of one parameter, each with at most one offer at a time. Every gradient is one.

    Args:
        policy: When gradients count.
        seed: Seed of all choices.
    """

    def __init__(self, policy: Policy, seed: int) -> None:
        self.random = random.Random(seed)
        self.owner = Owner([(1,)])
        self.start = float(self.owner.parameters[0].detach())
        self.hosted: HostedOptimizer = self.owner.optimizer(optim.SGD, lr=1.0)
        self.aggregator = Aggregator(self.hosted)
        self.queue = self.aggregator.queue = Later(self.aggregator.queue)
        self.aggregator.change(policy)
        self.read: dict[int, int] = {}
        self.offered: dict[int, Future[Outcome]] = {}
        self.arrivals: list[Arrival] = []
        self.futures: list[Future[Outcome]] = []
        for number in range(TRAINERS):
            self.aggregator.join(bytes([number]))

    def run(self) -> None:
        for _ in range(ACTIONS):
            self.random.choice((self.reads, self.offers, self.offers, self.queue.handle_one))()
        while self.queue.waiting:
            self.queue.handle_one()

    def reads(self) -> None:
        """A trainer that has its answer takes the parameters, as far as rounds are applied."""
        free = [each for each in range(TRAINERS) if each not in self.offered or self.offered[each].done()]
        if free:
            self.read[self.random.choice(free)] = self.owner.covered[0].parameter_state.steps

    def offers(self) -> None:
        """A trainer that has read the parameters offers its gradient."""
        if self.read:
            number = self.random.choice(list(self.read))
            steps, readings = self.read.pop(number), FirstReadings()
            readings.note([self.owner.parameters[0]], [steps])
            gradients = Contribution([torch.ones(1)], readings)
            _, future = self.aggregator.offer(bytes([number]), gradients, self.aggregator.steps.read_version(readings))
            self.offered[number] = future
            self.arrivals.append(Arrival(number, steps))
            self.futures.append(future)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_gradients_count_as_in_the_simulation_of_their_policy(policy: Policy) -> None:
    stale = 0
    for seed in range(ORDERS):
        trainers = Trainers(policy, seed)
        trainers.run()
        outcomes = [future.result() if future.done() else None for future in trainers.futures]
        found = {i: Fate(each.staleness, each.reason) for i, each in enumerate(outcomes) if each is not None}
        fates = simulate(policy, TRAINERS, trainers.arrivals)
        # Those whose trainers are too far ahead have no answer yet.
        assert found == {place: fates[place] for place in found}
        assert len(fates) - len(found) <= (TRAINERS if isinstance(policy, BoundedStaleness) else 0)
        stale += sum(each.staleness > 0 for each in found.values())
        for outcome in outcomes:
            assert outcome is None or outcome.counted or outcome.reason or isinstance(policy, Quorum)
        if isinstance(policy, Async):
            scaled = isinstance(policy.stale, Scale)
            counted = [each for each in fates.values() if not each.dropped]
            total = sum(1 / max(1, each.staleness) if scaled else 1.0 for each in counted)
            assert float(trainers.owner.parameters[0].detach()) == pytest.approx(trainers.start - total, abs=1e-3)
    assert stale > ORDERS


def test_the_gradient_that_completes_a_round_of_anybody_is_answered_after_its_step() -> None:
    for seed in range(ORDERS):
        trainers = Trainers(Quorum(3), seed)
        told: list[tuple[int, int]] = []

        def note(done: Future[Outcome], hosted: HostedOptimizer = trainers.hosted, told: Any = told) -> None:
            told.append((done.result().version, hosted.version))

        for _ in range(ACTIONS):
            known = len(trainers.futures)
            trainers.random.choice((trainers.reads, trainers.offers, trainers.queue.handle_one))()
            for future in trainers.futures[known:]:
                future.add_done_callback(note)
        while trainers.queue.waiting:
            trainers.queue.handle_one()
        rounds = [outcome.result() for outcome in trainers.futures if outcome.done() and outcome.result().counted]
        assert all(each.counted == 3 for each in rounds)
        assert [each.version for each in rounds] == list(range(1, trainers.hosted.version + 1))
        assert all(applied >= version for version, applied in told)
