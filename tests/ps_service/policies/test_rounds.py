"""Tests the rounds of each policy, one situation at a time."""

from __future__ import annotations

import pytest

from ps_service.policies.offers import Answer, Close, Counted, Dropped, Event, Offer, OfferKey, Pooled, Reason
from ps_service.policies.rounds import Rounds
from ps_wire.errors import InvalidArgumentError
from ps_wire.policies import Async, BoundedStaleness, Compensate, Policy, Quorum, Reject, Scale, Sync

A, B, C, D = (bytes([letter]) * 16 for letter in b"ABCD")


def rounds_of(policy: Policy, *trainers: bytes) -> Rounds:
    rounds = Rounds(policy)
    for trainer in trainers:
        assert rounds.join(trainer) == []
    return rounds


def key(trainer: bytes, number: int = 1) -> OfferKey:
    return OfferKey(trainer, number)


def offer(rounds: Rounds, trainer: bytes, number: int = 1, read: int | None = None) -> list[Event]:
    return rounds.offer(Offer(key(trainer, number), rounds.version if read is None else read))


def close(version: int, *keys: OfferKey, divisor: int | None = None) -> Close:
    return Close(version, tuple(Counted(each, 0, 1.0) for each in keys), len(keys) if divisor is None else divisor)


def test_async_closes_a_round_for_every_gradient() -> None:
    rounds = rounds_of(Async(), A, B)
    assert offer(rounds, A) == [close(1, key(A)), Answer(key(A), 1)]
    assert offer(rounds, B, read=0) == [Close(2, (Counted(key(B), 1, 1.0),), 1), Answer(key(B), 2)]


def test_scale_divides_by_the_staleness() -> None:
    rounds = rounds_of(Async(Scale()), A)
    weights = []
    for number in range(4):
        (closed, _) = offer(rounds, A, number, read=0)
        assert isinstance(closed, Close)
        weights.append(closed.counted[0].weight)
    assert weights == [1.0, 1.0, 1 / 2, 1 / 3]


def test_reject_drops_what_is_too_old_and_says_so() -> None:
    rounds = rounds_of(Async(Reject(after=1)), A)
    offer(rounds, A, 1)
    offer(rounds, A, 2)
    assert offer(rounds, A, 3, read=0) == [Dropped(key(A, 3), 2, Reason.STALE)]
    assert offer(rounds, A, 4, read=1)[0] == Close(3, (Counted(key(A, 4), 1, 1.0),), 1)


def test_compensate_leaves_the_weight() -> None:
    rounds = rounds_of(Async(Compensate(0.1)), A)
    offer(rounds, A, 1)
    assert offer(rounds, A, 2, read=0)[0] == Close(2, (Counted(key(A, 2), 1, 1.0),), 1)


def test_sync_waits_for_that_many_trainers() -> None:
    rounds = rounds_of(Sync(3), A)
    assert offer(rounds, A) == []
    assert offer(rounds, B) == []
    assert rounds.waiting_for() == []  # both that are there have come; the third has not joined
    assert offer(rounds, C) == [
        close(1, key(A), key(B), key(C)),
        Answer(key(A), 1),
        Answer(key(B), 1),
        Answer(key(C), 1),
    ]


def test_sync_of_all_waits_for_every_member() -> None:
    rounds = rounds_of(Sync(reduce="sum"), A, B)
    assert offer(rounds, B) == []
    assert rounds.waiting_for() == [A]
    closed = offer(rounds, A)[0]
    assert closed == close(1, key(B), key(A), divisor=1)


def test_sync_takes_one_gradient_of_each_trainer() -> None:
    rounds = rounds_of(Sync(2), A, B)
    assert offer(rounds, A, 1) == offer(rounds, A, 2) == []
    assert offer(rounds, B, 1)[0] == close(1, key(A, 1), key(B, 1))
    second = offer(rounds, B, 2)[0]
    assert isinstance(second, Close) and [each.key for each in second.counted] == [key(A, 2), key(B, 2)]


def test_sync_takes_those_that_came_first_if_there_are_more() -> None:
    rounds = rounds_of(Sync(2), A, B, C)
    offer(rounds, C)
    assert offer(rounds, B)[0] == close(1, key(C), key(B))
    assert offer(rounds, A) == []


@pytest.mark.parametrize("policy", [Sync(3), Sync()])
def test_a_round_does_not_wait_for_those_that_left(policy: Policy) -> None:
    rounds = rounds_of(policy, A, B, C)
    assert offer(rounds, A) == offer(rounds, B) == []
    assert rounds.leave(C)[0] == close(1, key(A), key(B))


def test_the_gradient_of_a_trainer_that_left_is_dropped_and_said() -> None:
    rounds = rounds_of(Sync(3), A, B, C)
    offer(rounds, A)
    assert rounds.leave(A) == [Dropped(key(A), 0, Reason.LEFT)]
    assert rounds.leave(A) == []
    assert offer(rounds, B) == []
    assert offer(rounds, C)[0] == close(1, key(B), key(C))


def test_a_trainer_that_joins_in_the_middle_of_a_round_is_part_of_it() -> None:
    rounds = rounds_of(Sync(), A, B)
    offer(rounds, A)
    rounds.join(C)
    assert offer(rounds, B) == []
    assert offer(rounds, C)[0] == close(1, key(A), key(B), key(C))


def test_an_offer_that_is_taken_back_is_in_no_round() -> None:
    rounds = rounds_of(Sync(2), A, B)
    offer(rounds, A)
    assert rounds.withdraw(key(A)) == [Dropped(key(A), 0, Reason.WITHDRAWN)]
    assert rounds.withdraw(key(A)) == rounds.withdraw(key(C)) == []
    assert offer(rounds, B) == []
    assert offer(rounds, A, 2)[0] == close(1, key(B), key(A, 2))


def test_bounded_staleness_applies_at_once_and_answers_later() -> None:
    rounds = rounds_of(BoundedStaleness(1), A, B)
    assert offer(rounds, A, 1) == [close(1, key(A, 1)), Answer(key(A, 1), 1)]
    assert offer(rounds, A, 2) == [close(2, key(A, 2))]
    assert rounds.waiting_for() == [B]
    assert offer(rounds, B) == [close(3, key(B)), Answer(key(A, 2), 2), Answer(key(B), 3)]


def test_bounded_staleness_does_not_wait_for_those_that_left() -> None:
    rounds = rounds_of(BoundedStaleness(0), A, B)
    offer(rounds, A)
    assert rounds.leave(B) == [Answer(key(A), 1)]


def test_who_joins_under_bounded_staleness_begins_with_the_slowest() -> None:
    rounds = rounds_of(BoundedStaleness(0), A)
    for number in range(5):
        assert len(offer(rounds, A, number)) == 2
    rounds.join(B)
    assert offer(rounds, B) == [close(6, key(B))]
    assert offer(rounds, A, 9) == [close(7, key(A, 9)), Answer(key(A, 9), 7), Answer(key(B), 6)]


def test_a_quorum_of_some_drops_those_that_come_late() -> None:
    rounds = rounds_of(Quorum(2, of=3), A, B, C)
    offer(rounds, A)
    assert offer(rounds, B)[0] == close(1, key(A), key(B))
    assert offer(rounds, C, read=0) == [Dropped(key(C), 1, Reason.LATE)]
    assert offer(rounds, C, 2) == []


def test_a_quorum_of_some_can_count_late_ones_in_the_next_round() -> None:
    rounds = rounds_of(Quorum(2, of=3, late="next", stale=Scale()), A, B, C)
    offer(rounds, A)
    offer(rounds, B)
    assert offer(rounds, C, read=0) == []
    assert offer(rounds, A, 2)[0] == Close(2, (Counted(key(C), 1, 1.0), Counted(key(A, 2), 0, 1.0)), 2)


def test_a_quorum_of_any_lets_trainers_go_on_at_once() -> None:
    rounds = rounds_of(Quorum(3), A, B)
    assert offer(rounds, A, 1) == [Pooled(Counted(key(A, 1), 0, 1.0), 0)]
    assert offer(rounds, A, 2) == [Pooled(Counted(key(A, 2), 0, 1.0), 0)]
    assert rounds.leave(A) == []
    assert offer(rounds, B) == [
        Pooled(Counted(key(B), 0, 1.0), 0, completes=True),
        close(1, key(A, 1), key(A, 2), key(B)),
        Answer(key(B), 1),
    ]


def test_another_policy_ends_the_open_round() -> None:
    rounds = rounds_of(Quorum(3), A)
    offer(rounds, A)
    assert rounds.change(Sync(2)) == [close(1, key(A))]
    offer(rounds, A, 2)
    assert rounds.change(Async())[0] == close(2, key(A, 2))
    assert rounds.policy == Async()


def test_another_policy_lets_those_go_on_that_were_ahead() -> None:
    rounds = rounds_of(BoundedStaleness(0), A, B)
    offer(rounds, A)
    assert rounds.change(Sync()) == [Answer(key(A), 1)]


def test_a_gradient_of_a_version_that_is_not_there_yet_is_refused() -> None:
    rounds = rounds_of(Async(), A)
    with pytest.raises(InvalidArgumentError, match="read from version 1; this is 0"):
        offer(rounds, A, read=1)
