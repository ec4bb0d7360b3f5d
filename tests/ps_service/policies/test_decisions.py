"""Tests what a coordinator keeps for other owners, and what those do when an owner has lost a part of its state."""

from __future__ import annotations

import pytest

from ps_service.policies.coordinator import Coordinator
from ps_service.policies.decisions import DecisionLog, Entry, Released
from ps_service.policies.follower import MOST_HELD, Follower, Gap
from ps_service.policies.offers import Close, Dropped, Offer, OfferKey, Reason
from ps_wire.errors import OverloadedError
from ps_wire.policies import Sync

TRAINER = b"A" * 16


def released(number: int) -> Released:
    return Released(OfferKey(TRAINER, number, 1))


def log_of(count: int) -> DecisionLog:
    log = DecisionLog(["f1", "f2"])
    for number in range(1, count + 1):
        log.add(released(number))
    return log


def test_decisions_are_forgotten_once_all_other_owners_have_them() -> None:
    log = log_of(4)
    log.note({"f1": 3})
    assert (log.base, [each.number for each in log.after(1)]) == (0, [2, 3, 4])
    log.note({"f1": 1, "f2": 2})
    assert (log.base, [each.number for each in log.after(0)]) == (2, [3, 4])
    log.note({"f1": 4, "f2": 4, "another": 9})
    assert (log.base, log.after(0), log.number) == (4, [], 4)


def test_a_step_is_ready_for_other_owners_once_it_is_made_and_what_is_behind_it_too() -> None:
    rounds = Coordinator(Sync(1), ["f1"])
    rounds.join(TRAINER)
    log = rounds.log
    (first, _), (second, _) = (rounds.offer(Offer(OfferKey(TRAINER, number, 1), 0)) for number in (1, 2))
    log.add(released(3))
    assert isinstance(first, Close) and isinstance(second, Close)
    assert log.ready(log.after(0)) == []
    log.made(first)
    assert log.ready(log.after(0)) == [Entry(1, first)]
    rounds.take_back([second], [OfferKey(TRAINER, 2, 1)])
    assert log.ready(log.after(0)) == [Entry(1, first), Entry(2, released(2)), Entry(3, released(3))]


def test_a_coordinator_with_an_older_state_continues_after_the_others() -> None:
    log = log_of(2)
    log.note({"f1": 5, "f2": 4})
    log.add(released(6))
    assert (log.base, log.after(0)) == (5, [Entry(6, released(6))])
    behind = Follower(4)
    assert behind.settle(log.base, log.after(0)) == [Gap(5, 5), released(6)]
    assert behind.applied == 6


def test_a_follower_waits_for_what_is_missing_between_decisions() -> None:
    follower = Follower(1)
    assert follower.settle(0, [Entry(3, released(3))]) == [] and follower.applied == 1
    both = [Entry(2, released(2)), Entry(3, released(3))]
    assert follower.settle(0, both) == [released(2), released(3)]
    assert follower.settle(0, both) == []


def test_a_follower_holds_no_more_than_its_bounds() -> None:
    follower = Follower()
    follower.check(OfferKey(TRAINER, 1, 1), 100, 10)
    follower.hold(OfferKey(TRAINER, 1, 1), 100)
    with pytest.raises(OverloadedError, match="1 offers \\(100 bytes\\)"):
        follower.check(OfferKey(TRAINER, 2, 1), 1, 100)
    for number in range(2, MOST_HELD + 1):
        follower.hold(OfferKey(TRAINER, number, 1), 0)
    with pytest.raises(OverloadedError):
        follower.check(OfferKey(TRAINER, 0, 1), 0, 1000)


def test_epochs_are_not_given_out_again_after_a_restart() -> None:
    rounds = Coordinator(Sync(1), ["f1"])
    rounds.restore(3, 7, {TRAINER: 5})
    rounds.join(TRAINER)
    rounds.join(b"B" * 16)
    assert rounds.epochs[TRAINER] == 5 and rounds.epochs[b"B" * 16] > 1_000_000
    stale = Offer(OfferKey(TRAINER, 1, 4), 3)
    assert rounds.offer(stale) == [Dropped(stale.key, 0, Reason.OUTDATED)]
