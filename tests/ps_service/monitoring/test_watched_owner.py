"""Tests what is known of an owner that is watched: whether it answers, its samples, and that it has started anew."""

from __future__ import annotations

import json

import pytest

from ps_service.monitoring.watched_owner import LOST_SECONDS, WatchedOwner
from ps_wire.v1.operations_pb2 import Event, HistoryReply, OperationSample, Sample, StatusReply
from tests.ps_service.clock import Clock


def reply(*numbers: int, incarnation: str = "a", state: str = "serving", age: float = 0.25) -> HistoryReply:
    last = max(numbers, default=0)
    samples = [Sample(number=number, age_seconds=age + last - number, seconds=1.0) for number in numbers]
    return HistoryReply(owner="ps1", incarnation=incarnation, state=state, samples=samples)


@pytest.fixture
def owner(clock: Clock) -> WatchedOwner:
    return WatchedOwner("ps1", "127.0.0.1:1", clock)


def test_an_owner_that_does_not_answer_is_silent_and_then_lost(owner: WatchedOwner, clock: Clock) -> None:
    assert owner.state == "asked"
    owner.heard(reply(1))
    assert (owner.state, owner.since) == ("serving", clock.now)
    clock.now += 1
    owner.failed("connection refused")
    assert (owner.state, owner.why) == ("silent", "connection refused")
    clock.now += LOST_SECONDS - 1
    owner.failed("connection refused")
    assert (owner.state, owner.since) == ("lost", clock.now)
    clock.now += 60
    owner.failed("connection refused")
    assert owner.since == clock.now - 60
    owner.heard(reply(2))
    assert (owner.state, owner.why) == ("serving", "")


def test_an_owner_that_has_never_answered_is_lost_after_a_while(owner: WatchedOwner, clock: Clock) -> None:
    owner.failed("connection refused")
    assert owner.state == "asked"
    clock.now += LOST_SECONDS
    owner.failed("connection refused")
    assert owner.state == "lost"


@pytest.mark.parametrize(("state", "listed"), [("draining", True), ("serving", False)])
def test_one_that_drained_or_left_the_directory_has_left(owner: WatchedOwner, state: str, listed: bool) -> None:
    owner.heard(reply(1, state=state))
    owner.listed = listed
    owner.failed("connection refused")
    assert owner.state == "left"
    owner.failed("connection refused")
    assert owner.state == "left"
    owner.heard(reply(2))
    assert owner.state == "serving"


def test_samples_follow_each_other_without_a_gap(owner: WatchedOwner, clock: Clock) -> None:
    owner.heard(reply(1, 2, 3))
    clock.now += 1.1  # the answer took a tenth of a second longer
    owner.heard(reply(4))
    clock.now += 30  # it was stopped for a while
    owner.heard(reply(5))
    ends = [each.ended for each in owner.samples]
    assert ends == pytest.approx([998.25, 999.25, 1000.25, 1001.25, clock.now - 0.25])
    assert [each.message.number for each in owner.samples] == [1, 2, 3, 4, 5]
    owner.heard(reply(4, 5))
    assert len(owner.samples) == 5


def test_ten_minutes_and_two_hundred_events_are_kept(owner: WatchedOwner) -> None:
    owner.heard(reply(*range(1, 651)))
    assert (len(owner.samples), owner.last_number) == (600, 650)
    owner.told(StatusReply(events=[Event(number=number) for number in range(1, 301)]))
    owner.told(StatusReply(events=[Event(number=300), Event(number=301)]))
    assert (len(owner.events), owner.last_event) == (200, 301)


def test_an_owner_that_has_started_anew_begins_anew(owner: WatchedOwner) -> None:
    owner.heard(reply(1, 2, 3))
    owner.told(StatusReply(events=[Event(number=9)]))
    owner.heard(reply(1, incarnation="b"))
    assert (owner.state, owner.last_number, owner.last_event, owner.status) == ("asked", 0, 0, None)
    owner.heard(reply(1, incarnation="b"))
    assert (owner.state, owner.last_number) == ("serving", 1)


def test_a_sample_is_encoded_once_in_the_order_that_the_page_reads(owner: WatchedOwner) -> None:
    sample = Sample(number=7, seconds=1.0, steps=5, staleness=[0, 5], received_bytes=1, sent_bytes=2)
    sample.operations.append(OperationSample(name='"<call>', errors=1, durations=[3, 4]))
    sample.connected_sessions, sample.resident_bytes, sample.context_bytes, sample.trainer_steps = 3, 4, 5, 6
    owner.heard(HistoryReply(samples=[sample]))
    (found,) = owner.samples
    operations = {'"<call>': [1, 3, 4]}
    assert json.loads(found.encoded) == [7, 1000.5, 1.0, 5, [0, 5], operations, 1, 2, 3, 0, 4, 0, 0, 0, 0, 5, 6]
