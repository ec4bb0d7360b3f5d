"""Tests that a session ends with its lease, and never while it has an open stream."""

from __future__ import annotations

import pytest

from ps_service.sessions.sessions import Sessions
from ps_wire.limits import Limits
from ps_wire.refs import ContextId
from tests.ps_service.clock import Clock

ANNA, BERT = b"a" * 16, b"b" * 16


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(Limits(lease_seconds=10.0), clock)


def test_a_trainer_has_one_session(sessions: Sessions) -> None:
    assert sessions.get(ANNA) is None
    session = sessions.open(ANNA)
    assert sessions.open(ANNA) is session is sessions.get(ANNA)
    assert sessions.open(BERT) is not session
    assert len(sessions) == 2


def test_a_session_expires_when_its_lease_is_over(sessions: Sessions, clock: Clock) -> None:
    session = sessions.open(ANNA)
    clock.now += 10.0
    assert list(sessions.expired()) == []
    clock.now += 0.1
    assert list(sessions.expired()) == [session]


def test_a_trainer_is_lost_when_it_has_had_no_stream_for_too_long(sessions: Sessions, clock: Clock) -> None:
    assert sessions.is_lost(ANNA, 5.0)
    session = sessions.open(ANNA)
    clock.now += 5.0
    assert not sessions.is_lost(ANNA, 5.0)
    clock.now += 0.1
    assert sessions.is_lost(ANNA, 5.0)
    session.transport = "unary"
    assert not sessions.is_lost(ANNA, 5.0), "it never has a stream"
    session.transport, session.streams = "grpc", 1
    assert not sessions.is_lost(ANNA, 5.0)


def test_a_session_with_a_stream_does_not_expire(sessions: Sessions, clock: Clock) -> None:
    session = sessions.open(ANNA)
    session.streams += 1
    clock.now += 1000.0
    assert session.idle_seconds() == 0.0
    assert list(sessions.expired()) == []


def test_the_lease_begins_when_the_stream_ends(sessions: Sessions, clock: Clock) -> None:
    session = sessions.open(ANNA)
    session.streams += 1
    clock.now += 1000.0
    session.streams -= 1
    session.touch()
    clock.now += 9.0
    assert session.idle_seconds() == 9.0
    assert list(sessions.expired()) == []
    clock.now += 2.0
    assert list(sessions.expired()) == [session]


def test_opening_again_renews_the_lease(sessions: Sessions, clock: Clock) -> None:
    sessions.open(ANNA)
    other = sessions.open(BERT)
    clock.now += 9.0
    sessions.open(ANNA)
    clock.now += 9.0
    assert list(sessions.expired()) == [other]


def test_connected_are_those_with_a_stream(sessions: Sessions) -> None:
    sessions.open(ANNA).streams = 2
    sessions.open(BERT)
    assert (len(sessions), sessions.connected) == (2, 1)


def test_an_ended_session_is_not_found_again(sessions: Sessions) -> None:
    session = sessions.open(ANNA)
    sessions.end(session)
    assert session.ended
    assert sessions.get(ANNA) is None
    assert sessions.open(ANNA) is not session


def test_ending_an_old_session_does_not_touch_the_new_one(sessions: Sessions) -> None:
    old = sessions.open(ANNA)
    sessions.end(old)
    new = sessions.open(ANNA)
    sessions.end(old)
    assert sessions.get(ANNA) is new
    assert not new.ended


def test_a_session_remembers_which_requests_it_took(sessions: Sessions) -> None:
    session = sessions.open(ANNA)
    for number in (1, 2, 5):
        session.taken_numbers.add(number)
    assert [number in session.taken_numbers for number in range(1, 7)] == [True, True, False, False, True, False]


def test_a_session_shows_its_state(sessions: Sessions) -> None:
    session = sessions.open(ANNA)
    session.streams = 1
    assert repr(session) == "<Session 61616161, 1 streams, <SeenNumbers 1..0 and 0 above>>"
    sessions.end(session)
    assert "ended" in repr(session)


def test_a_trainer_without_a_stream_is_away(sessions: Sessions) -> None:
    assert sessions.is_away(ANNA), "there is no such session"
    session = sessions.open(ANNA)
    assert sessions.is_away(ANNA)
    session.streams += 1
    assert not sessions.is_away(ANNA)


def test_the_steps_of_trainers_count_also_when_they_have_left(sessions: Sessions) -> None:
    one, other = ContextId(ANNA, 1), ContextId(ANNA, 2)
    anna = sessions.open(ANNA)
    sessions.open(BERT)
    for trainer, context in ((ANNA, one), (ANNA, one), (ANNA, other), (BERT, None), (b"c" * 16, one)):
        sessions.stepped(trainer, context)
    assert sessions.steps == 3, "a pass steps once, and nobody knows a trainer without a session"
    sessions.end(anna)
    sessions.end(anna)
    assert sessions.steps == 3
    sessions.open(ANNA)
    sessions.stepped(ANNA, one)
    assert sessions.steps == 4
