"""Tests of offers that trainers make again: in random orders of requests and of their handling, one attempt counts."""

from __future__ import annotations

import random
from concurrent.futures import Future

import pytest
import torch
from torch import optim

from ps_service.policies.offers import OfferKey
from ps_service.training.aggregator import Aggregator
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.round_gradients import Contribution
from ps_service.training.waiting_offers import Outcome
from ps_wire.attempts import REPEATED, Applied, Attempt
from ps_wire.errors import DeadlineExceededError, DrainingError
from ps_wire.policies import Async, BoundedStaleness, Policy, Quorum, Reject, Sync
from ps_wire.reported import Reported
from tests.ps_service.training.owned import Owner
from tests.ps_service.training.test_rounds_that_take_time import Later

POLICIES = [Async(Reject(1000)), Sync(2, reduce="sum"), Quorum(1), Quorum(3, reduce="sum"), BoundedStaleness(1)]
ONE, OTHER = b"1" * 16, b"2" * 16


class Trainers:
    """Trainers that make each of their offers again and again. The gradient of an offer is a power of four.

    Args:
        policy: When gradients count.
    """

    def __init__(self, policy: Policy) -> None:
        self.owner = Owner([(1,)])
        self.owner.parameters[0].data.zero_()
        self.hosted: HostedOptimizer = self.owner.optimizer(optim.SGD, lr=1.0)
        self.aggregator = self.hosted.aggregator = Aggregator(self.hosted)
        self.queue = self.aggregator.queue = Later(self.aggregator.queue)
        self.aggregator.change(policy)
        self.offers = 0
        self.applied: dict[bytes, tuple[int, Applied]] = {}
        self.made: list[tuple[OfferKey, Future[Outcome]]] = []

    def offer(self, trainer: bytes) -> Future[Outcome]:
        number, applied = self.applied.get(trainer) or (self.offers, {})
        if trainer not in self.applied:
            self.offers += 1
            self.applied[trainer] = number, applied
        gradient = torch.full((1,), -(4.0**number), dtype=torch.float32)
        report = self.hosted.reported.expect(trainer, {"offers": Reported("sum", 1)})
        made = self.aggregator.offer(trainer, Contribution([gradient], None, report, Attempt(applied)), None)
        self.made.append(made)
        return made[1]

    def go_on(self, trainer: bytes) -> None:
        """The trainer makes no more attempts of its last offer."""
        self.applied.pop(trainer, None)

    def handle_all(self) -> None:
        while self.queue.waiting:
            self.queue.handle_one()

    @property
    def counts(self) -> list[int]:
        """How often each offer has counted."""
        total = int(self.owner.parameters[0])
        return [total // 4**number % 4 for number in range(self.offers)]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_one_attempt_counts_in_every_order(policy: Policy) -> None:
    repeated = 0
    for seed in range(15):
        chosen, trainers = random.Random(seed), Trainers(policy)
        for _ in range(40):
            trainer = chosen.choice([ONE, OTHER])
            what = chosen.choice(["offer", "offer", "handle", "handle", "withdraw", "expire", "leave", "go on"])
            if what == "offer" and trainers.offers < 10:
                trainers.offer(trainer)
            elif what == "handle":
                trainers.queue.handle_one()
            elif what == "leave" and chosen.random() < 0.2:
                trainers.aggregator.leave(trainer)
            elif what == "go on":
                trainers.go_on(trainer)
            elif trainers.made and what in ("withdraw", "expire"):
                key, _ = chosen.choice(trainers.made)
                if what == "withdraw":
                    trainers.aggregator.withdraw(key)
                else:
                    trainers.aggregator.expire(key, 1.0)
        trainers.aggregator.drain()
        trainers.aggregator.change(policy)  # ends the open round
        trainers.handle_all()
        assert max(trainers.counts) <= 1
        assert all(future.done() for _, future in trainers.made) and not len(trainers.aggregator._offered)
        assert trainers.hosted.reported.read(reset=False).counts.get("offers", 0) == sum(trainers.counts)
        outcomes = [future.result() for _, future in trainers.made if future.exception() is None]
        repeated += sum(each.reason == REPEATED for each in outcomes)
    assert repeated > 10


def test_an_offer_takes_the_place_of_an_earlier_attempt_that_waits() -> None:
    trainers = Trainers(Sync(2, reduce="sum"))
    first = trainers.offer(ONE)
    trainers.handle_all()
    second, other = trainers.offer(ONE), trainers.offer(OTHER)
    trainers.handle_all()
    assert first.result().reason == "withdrawn"
    assert (second.result().counted, other.result().counted) == (2, 2) and trainers.counts == [1, 1]


def test_an_attempt_after_one_whose_step_has_failed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = Trainers(Quorum(1, of=2))
    with monkeypatch.context() as patch:
        patch.setattr(trainers.aggregator.steps, "apply", failing)
        first = trainers.offer(ONE)
        trainers.handle_all()
    assert isinstance(first.exception(), RuntimeError)
    second = trainers.offer(ONE)
    trainers.handle_all()
    assert second.result().counted == 1 and trainers.counts == [1]


def failing(*args: object) -> None:
    raise RuntimeError("broken")


@pytest.mark.parametrize("end", ["withdrawn", "left", "expired", "drained", "removed"])
def test_an_offer_that_ends_before_the_rounds_know_it_does_not_count(end: str) -> None:
    trainers = Trainers(Async(Reject(1000)))
    future = trainers.offer(ONE)
    (key, _), aggregator = trainers.made[0], trainers.aggregator
    if end == "withdrawn":
        aggregator.withdraw(key)
    elif end == "left":
        aggregator.leave(ONE)
    elif end == "expired":
        aggregator.expire(key, 1.0)
    elif end == "drained":
        aggregator.withdraw(key)
        aggregator.drain()
    else:
        aggregator.end()
    trainers.handle_all()
    if end == "expired":
        assert isinstance(future.exception(), DeadlineExceededError)
    elif end == "drained":
        assert isinstance(future.exception(), DrainingError)
    elif end != "removed":
        assert future.result().reason == "withdrawn"
    assert future.done() and trainers.counts == [0]
