"""Tests of the communicators of an owner without network: joining, ends, times, and what is held."""

from __future__ import annotations

import pytest

from ps_wire.collectives import MOST_OPEN, Signature
from ps_wire.errors import (
    CancelledCallError,
    DeadlineExceededError,
    InvalidArgumentError,
    NameConflictError,
    OverloadedError,
    SessionLostError,
    TooLargeError,
    UnavailableError,
)
from ps_wire.limits import Limits
from tests.ps_service.collectives.world import BARRIER, World, sends

GATHER = Signature("gather", 0)


def test_ranks_are_given_or_in_the_order_of_joining() -> None:
    world = World()
    futures = [
        world.join(world.trainer(name), 4, rank=rank) for name, rank in (("a", None), ("b", 0), ("c", None), ("d", 2))
    ]
    assert [each.result(0) for each in futures] == [1, 0, 3, 2]


@pytest.mark.parametrize(
    ("size", "rank", "name"),
    [(0, None, "team"), (5000, None, "team"), (2, 2, "team"), (2, -1, "team"), (2, 0, ""), (2, 0, "x" * 200)],
)
def test_a_communicator_that_makes_no_sense_is_refused(size: int, rank: int | None, name: str) -> None:
    world = World()
    with pytest.raises(InvalidArgumentError):
        world.join(world.trainer("a"), size, rank=rank, name=name)
    assert world.is_idle


def test_trainers_that_disagree_do_not_harm_those_that_have_joined() -> None:
    world = World()
    first = world.join(world.trainer("a"), 2, rank=1)
    with pytest.raises(InvalidArgumentError, match="3 members here, and 2"):
        world.join(world.trainer("b"), 3)
    with pytest.raises(NameConflictError, match="rank 1"):
        world.join(world.trainer("c"), 2, rank=1)
    with pytest.raises(InvalidArgumentError, match="already"):
        world.join(b"a", 2)
    with pytest.raises(SessionLostError):
        world.join(b"gone", 2)
    assert world.join(world.trainer("d"), 2).result(0) == 0 and first.result(0) == 1


def test_a_trainer_is_a_member_of_a_bounded_number() -> None:
    world = World()
    trainer = world.trainer("a")
    for member in range(256):
        world.join(trainer, 2, member, name=str(member))
    with pytest.raises(OverloadedError, match="256"):
        world.join(trainer, 2, 999, name="more")


def test_who_waits_for_others_to_join_hears_how_many_have() -> None:
    world = World()
    late = world.join(world.trainer("a"), 3, rank=2, seconds=2.0)
    patient = world.join(world.trainer("b"), 3)
    world.wait(1.9)
    assert not late.done()
    world.wait(0.2)
    with pytest.raises(DeadlineExceededError, match=r"2 of 3 trainers have joined, among them the ranks 2"):
        late.result(0)
    world.communicators.give_up_joining(b"b", 1)
    with pytest.raises(CancelledCallError):
        patient.result(0)
    assert world.is_idle


def test_a_restarted_trainer_takes_the_place_of_its_predecessor() -> None:
    world = World()
    first = world.join(world.trainer("a"), 2, rank=0)
    world.break_connection(b"a")
    with pytest.raises(NameConflictError):
        world.join(world.trainer("b"), 2, rank=0)
    world.wait(1.5)
    again = world.join(world.trainer("b"), 2, rank=0)
    assert isinstance(first.exception(0), UnavailableError)
    assert world.join(world.trainer("c"), 2).result(0) == 1 and again.result(0) == 0


def test_a_trainer_that_is_refused_takes_no_place() -> None:
    world = World()
    away = world.join(world.trainer("a"), 3)
    present = world.join(world.trainer("b"), 3, rank=1)
    world.break_connection(b"a")
    world.wait(1.5)
    last = world.join(world.trainer("c"), 3)
    with pytest.raises(NameConflictError, match="rank 1"):
        world.join(world.trainer("d"), 3, rank=1)
    world.connect(b"a")
    world.wait(0.3)
    assert [each.result(0) for each in (away, present, last)] == [0, 1, 2]


def test_a_communicator_is_not_made_with_a_trainer_that_is_away() -> None:
    world = World()
    away = world.join(world.trainer("a"), 2)
    world.break_connection(b"a")
    world.wait(1.5)
    other = world.join(world.trainer("b"), 2)
    world.wait(1.0)
    assert not other.done()
    world.connect(b"a")
    world.wait(0.3)
    assert (away.result(0), other.result(0)) == (0, 1)


class Returning(World):
    """Some trainer is back just after it was looked for and not found."""

    def is_lost(self, trainer: bytes, patience: float) -> bool:
        found = super().is_lost(trainer, patience)
        if found and trainer == self.returning:
            self.connect(trainer)
        return found

    returning = b""


def test_one_that_comes_while_another_comes_back_begins_another_communicator() -> None:
    world = Returning()
    away = world.join(world.trainer("a"), 2)
    world.break_connection(b"a")
    world.wait(1.5)
    present = world.join(world.trainer("b"), 2)
    world.returning = b"a"
    late = world.join(world.trainer("c"), 2)
    assert (away.result(0), present.result(0)) == (0, 1) and not late.done()
    assert world.join(world.trainer("d"), 2).result(0) == 1 and late.result(0) == 0


def test_one_that_comes_when_all_are_back_begins_another_communicator() -> None:
    world = World()
    away = world.join(world.trainer("a"), 2)
    world.break_connection(b"a")
    world.wait(1.5)
    present = world.join(world.trainer("b"), 2)
    world.connect(b"a")
    late = world.join(world.trainer("c"), 2)
    assert (away.result(0), present.result(0)) == (0, 1)
    assert not late.done() and world.join(world.trainer("d"), 2).result(0) == 1 and late.result(0) == 0


def test_a_lost_member_ends_the_communicator_once_others_wait_for_it() -> None:
    world = World()
    one, two, three = world.all_join(3)
    waiting = world.call(one, 1)
    world.break_connection(three)
    world.wait(0.9)
    assert not waiting.done()
    world.wait(0.5)
    with pytest.raises(UnavailableError, match=r"rank 2 \(trainer t2\) is lost"):
        waiting.result(0)
    with pytest.raises(UnavailableError, match="rank 2"):
        world.call(two, 1).result(0)
    for each in (one, two):
        world.communicators.leave(each, 1, "")
    world.end_session(three)
    assert world.is_idle


def test_a_connection_that_is_back_in_time_is_no_loss() -> None:
    world = World()
    one, two = world.all_join(2, patience=5.0)
    waiting = world.call(one, 1)
    for _ in range(3):
        world.break_connection(two)
        world.wait(4.5)
        world.connect(two)
    world.call(two, 1)
    assert waiting.result(0)


def test_a_member_that_is_gone_after_it_has_arrived_spoils_nothing() -> None:
    world = World()
    one, two, three = world.all_join(3)
    first = world.call(one, 1)
    world.call(two, 1, GATHER, "mine")
    assert isinstance(first.exception(0), InvalidArgumentError)
    world = World()
    one, two, three = world.all_join(3)
    world.call(two, 1, GATHER, "two")
    world.end_session(two)
    world.call(three, 1, GATHER, "three")
    found = world.call(one, 1, GATHER).result(0)
    assert [piece.value.text for piece in found.pieces] == ["two", "three"]
    with pytest.raises(UnavailableError, match="rank 1"):
        world.call(one, 2).result(0)


@pytest.mark.parametrize("why", ["", "ValueError: no"])
def test_a_member_that_leaves_ends_the_communicator_for_those_that_wait(why: str) -> None:
    world = World()
    one, two = world.all_join(2)
    waiting = world.call(one, 1)
    world.communicators.leave(two, 1, why)
    with pytest.raises(UnavailableError, match="ValueError: no" if why else "rank 1 .* has left"):
        waiting.result(0)
    with pytest.raises(UnavailableError, match="is no member"):
        world.call(two, 1).result(0)


def test_members_may_leave_when_all_is_done() -> None:
    world = World()
    one, two = world.all_join(2)
    futures = [world.call(each, 1) for each in (one, two)]
    world.communicators.leave(one, 1, "")
    world.communicators.leave(one, 1, "")
    world.communicators.leave(two, 1, "")
    assert all(each.result(0) for each in futures) and world.is_idle


def test_a_cancelled_call_ends_the_communicator() -> None:
    world = World()
    one, two, three = world.all_join(3)
    futures = [world.call(one, 1), world.call(two, 1)]
    world.communicators.cancel(one, 1, 1)
    for each in (*futures, world.call(three, 1)):
        with pytest.raises(UnavailableError, match=r"rank 0 \(trainer t0\) has cancelled collective 1, barrier\(\)"):
            each.result(0)


def test_a_call_that_is_cancelled_too_late_changes_nothing() -> None:
    world = World()
    one, two = world.all_join(2)
    futures = [world.call(each, 1) for each in (one, two)]
    world.communicators.cancel(one, 1, 1)
    futures += [world.call(each, 2) for each in (one, two)]
    assert all(each.result(0) for each in futures)


@pytest.mark.parametrize("seconds", [0.1, 3.0, 7.0])
def test_a_wait_that_is_over_names_who_is_missing(seconds: float) -> None:
    world = World()
    one, two, three, _four = world.all_join(4)
    futures = [world.call(one, 1), world.call(three, 1, seconds=seconds)]
    world.wait(seconds - 0.05)
    assert not any(each.done() for each in futures)
    world.wait(0.31)
    for each in (*futures, world.call(two, 1)):
        expected = rf"rank 2 \(trainer t2\) has waited {seconds:g} s in collective 1, .*, for rank 1 \(.*\), rank 3"
        with pytest.raises(DeadlineExceededError, match=expected):
            each.result(0)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (Signature("gather", 0), Signature("broadcast", 0)),
        (Signature("gather", 0), Signature("gather", 1)),
        (Signature("all_reduce", 0, "sum"), Signature("all_reduce", 0, "max")),
        (Signature("barrier"), Signature("all_gather")),
    ],
    ids=str,
)
def test_a_mismatch_names_both(mine: Signature, theirs: Signature) -> None:
    world = World()
    one, two, three = world.all_join(3)
    first = world.call(one, 1, mine, *sends(mine, 0, 3))
    second = world.call(two, 1, theirs, *sends(theirs, 1, 3))
    third = world.call(three, 1, mine, *sends(mine, 2, 3))
    for each in (first, second, third):
        with pytest.raises(InvalidArgumentError) as error:
            each.result(0)
        assert f"rank 1 (trainer t1) calls {theirs} as its collective 1" in str(error.value)
        assert f"rank 0 (trainer t0) calls {mine}" in str(error.value)


def test_members_that_send_too_few_or_too_many_values_end_the_communicator() -> None:
    for signature, values in (
        (Signature("gather", 1), ["x"]),
        (Signature("gather", 0), []),
        (Signature("scatter", 1), ["x"]),
        (Signature("broadcast", 0), ["x"]),
        (Signature("broadcast", 7), []),
        (Signature("barrier"), ["x"]),
        (Signature("all_gather"), ["x", "y"]),
    ):
        world = World()
        one, two, _ = world.all_join(3)
        with pytest.raises(InvalidArgumentError, match="rank 1"):
            world.call(two, 1, signature, *values).result(0)
        with pytest.raises(InvalidArgumentError):
            world.call(one, 1).result(0)


def test_numbers_match_calls_in_any_order_of_arrival_and_count_once() -> None:
    world = World()
    one, two = world.all_join(2)
    second, first = (
        world.call(one, 2, Signature("all_gather"), "1.2"),
        world.call(one, 1, Signature("all_gather"), "1.1"),
    )
    for number in (1, 2):
        world.call(two, number, Signature("all_gather"), f"2.{number}")
    assert [each.result(0).pieces[0].value.text for each in (first, second)] == ["2.1", "2.2"]
    third = world.call(one, 3)
    for number in (1, 3, 0):
        with pytest.raises(InvalidArgumentError, match="before"):
            world.call(one, number).result(0)
    world.call(two, 3)
    assert third.result(0)


def test_open_collectives_are_bounded() -> None:
    world = World()
    one, _ = world.all_join(2)
    futures = [world.call(one, number + 1) for number in range(MOST_OPEN)]
    assert not any(each.done() for each in futures)
    with pytest.raises(OverloadedError, match="rank 0"):
        world.call(one, MOST_OPEN + 1).result(0)
    assert all(isinstance(each.exception(0), OverloadedError) for each in futures)


def test_bytes_are_bounded_for_each_communicator_and_for_all() -> None:
    world = World(Limits(max_message_bytes=1000, max_owner_bytes=1500))
    one, two, three = world.all_join(3)
    for each, name in ((one, "x"), (two, "y")):
        world.call(each, 1, Signature("all_gather"), name * 400)
    assert 800 < world.communicators.nbytes < 850
    with pytest.raises(TooLargeError, match="more than 1,000 bytes"):
        world.call(three, 1, Signature("all_gather"), "z" * 400).result(0)
    assert world.communicators.nbytes == 0
    trainers = [world.trainer(f"u{number}") for number in range(4)]
    for pair in ("p", "q"):
        for each in trainers[:2] if pair == "p" else trainers[2:]:
            world.join(each, 2, name=pair)
    waiting = world.call(trainers[0], 1, Signature("all_gather"), "x" * 900)
    with pytest.raises(OverloadedError, match="max_owner_bytes"):
        world.call(trainers[2], 1, Signature("all_gather"), "x" * 900).result(0)
    # The other communicator is not harmed.
    world.call(trainers[1], 1, Signature("all_gather"), "y")
    assert waiting.result(0) and world.communicators.nbytes == 0


def test_a_reduction_that_fails_ends_the_communicator() -> None:
    world = World()
    one, two, three = world.all_join(3)
    op = Signature("all_reduce", 0, "sum")
    futures = [world.call(one, 1, op, 1), world.call(two, 1, op, [1]), world.call(three, 1, op, 1)]
    for each in (*futures, world.call(one, 2)):
        with pytest.raises(InvalidArgumentError, match="rank 0 has a number, and rank 1 a list of 1"):
            each.result(0)


def test_a_late_member_of_a_name_waits_for_another_communicator() -> None:
    world = World()
    world.all_join(2)
    late = world.join(world.trainer("late"), 2)
    assert not late.done()
    assert world.join(world.trainer("more"), 2).result(0) == 1 and late.result(0) == 0


def test_no_timer_is_left_when_nobody_waits() -> None:
    world = World()
    one, two = world.all_join(2)
    assert world.call(one, 1) and BARRIER
    world.call(two, 1)
    world.wait(10.0)
    assert not world._timers
