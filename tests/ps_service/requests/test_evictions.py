"""Tests that an operator lists sessions and contexts under short ids, and ends the right ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.requests.administration import (
    BY_OPERATOR,
    end_unused,
    evict_context,
    evict_session,
    evict_unused,
    in_use,
    session_ids,
)
from ps_service.sessions.gate import Gate
from ps_service.sessions.request_sources import Running
from ps_service.sessions.sessions import SessionState
from ps_wire.errors import ContextLostError, InvalidArgumentError, UnavailableError, UnknownNameError
from ps_wire.limits import Limits
from ps_wire.refs import ContextId
from ps_wire.v1 import operations_pb2 as pb

ANNA, BERT = bytes.fromhex("abcd0123" + 24 * "0"), bytes.fromhex("abff4567" + 24 * "0")
NAMESAKE = bytes.fromhex("abcd0123" + 24 * "1")
"""A trainer whose id begins like that of Anna."""


class Requests:
    """Requests that have no answer yet, and the sessions that were dismissed, which the owner then ends."""

    def __init__(self, engine: Engine) -> None:
        self.running_now: list[Running] = []
        self.dismissed: list[SessionState] = []
        self._engine = engine
        engine.requests.add(self)

    def running(self) -> Iterator[Running]:
        return iter(self.running_now)

    def dismiss(self, session: SessionState) -> None:
        self.dismissed.append(session)
        self._engine.end_session(session)

    def add(self, request: Any, trainer: bytes = ANNA) -> None:
        self.running_now.append(Running(trainer, request))


@pytest.fixture
def requests(engine: Engine) -> Requests:
    return Requests(engine)


def context(number: int, trainer: bytes = ANNA) -> ContextId:
    return ContextId(trainer, number)


def opened(engine: Engine, *contexts: ContextId) -> None:
    """Opens passes, each used by its trainer."""
    for each in contexts:
        engine.sessions.open(each.trainer)
        engine.contexts.open(each, each.trainer)


# What is in use


def test_requests_without_an_answer_use_the_contexts_they_name(engine: Engine, requests: Requests) -> None:
    requests.add(pb.CallRequest(context=context(1).to_message()))
    requests.add(pb.BackwardRequest(context=context(1).to_message()))
    requests.add(pb.StepRequest(context=context(2, BERT).to_message()), BERT)
    requests.add(pb.CallRequest())
    requests.add(pb.StatusRequest())
    assert in_use(engine) == {context(1): 2, context(2, BERT): 1}


# Ids


def test_a_session_is_displayed_by_the_first_digits_of_its_trainer(engine: Engine) -> None:
    for trainer in (ANNA, BERT):
        engine.sessions.open(trainer)
    assert session_ids(engine) == {ANNA: "abcd0123", BERT: "abff4567"}


def test_sessions_that_look_alike_are_told_apart_by_their_numbers(engine: Engine) -> None:
    first, second = engine.sessions.open(ANNA), engine.sessions.open(NAMESAKE)
    assert session_ids(engine) == {ANNA: f"abcd0123~{first.number}", NAMESAKE: f"abcd0123~{second.number}"}
    assert first.number != second.number


# Ending sessions


@pytest.mark.parametrize("id", ["abcd0123", "ABCD0123", "abc", "abcd0123~1"])
def test_a_session_is_ended_by_its_id_or_the_beginning_of_it(engine: Engine, requests: Requests, id: str) -> None:
    session, other = engine.sessions.open(ANNA), engine.sessions.open(BERT)
    opened(engine, context(1))
    assert evict_session(engine, id) == "abcd0123"
    assert requests.dismissed == [session]
    assert engine.sessions.all() == [other]
    assert engine.contexts.all() == []
    assert engine.sessions.take_why_lost(ANNA) == BY_OPERATOR
    assert engine.counters.sessions_ended == {"lease": 0, "operator": 1, "revoked": 0}


def test_an_ambiguous_id_ends_no_session(engine: Engine, requests: Requests) -> None:
    for trainer in (ANNA, NAMESAKE, BERT):
        engine.sessions.open(trainer)
    with pytest.raises(InvalidArgumentError, match=r"session abcd0123 is ambiguous: it matches 2 \(abcd0123~1, abcd01"):
        evict_session(engine, "abcd0123")
    assert requests.dismissed == []
    assert evict_session(engine, "abcd0123~2") == "abcd0123~2"
    assert [each.trainer for each in requests.dismissed] == [NAMESAKE]


def test_an_ambiguous_id_lists_a_few_that_match(engine: Engine) -> None:
    for number in range(7):
        engine.sessions.open(bytes.fromhex(f"ab{number:06x}" + 24 * "0"))
    with pytest.raises(InvalidArgumentError, match=r"it matches 7 \(ab000000, .*ab000004, …\)"):
        evict_session(engine, "ab")


@pytest.mark.parametrize("id", ["", "xyz", "abcd01234", "abcd0123~", "abcd0123/1"])
def test_an_id_that_is_none_is_explained(engine: Engine, id: str) -> None:
    engine.sessions.open(ANNA)
    with pytest.raises(InvalidArgumentError, match="is not the id of a session; one looks like 0123abcd"):
        evict_session(engine, id)


def test_a_session_that_is_not_there_is_told(engine: Engine) -> None:
    engine.sessions.open(ANNA)
    for id in ("ff", "abcd0123~2"):
        with pytest.raises(UnknownNameError, match=f"there is no session {id} here"):
            evict_session(engine, id)


# Ending contexts


@pytest.mark.parametrize("id", ["abcd0123/7", "ABCD0123/7", "ab/7"])
def test_a_context_is_ended_and_its_trainer_is_told_why(engine: Engine, id: str) -> None:
    opened(engine, context(7), context(8), context(1, BERT))
    assert evict_context(engine, id) == "abcd0123/7"
    assert {each.id for each in engine.contexts.all()} == {context(8), context(1, BERT)}
    with pytest.raises(ContextLostError, match=BY_OPERATOR):
        engine.contexts.open(context(7))
    assert engine.counters.contexts_ended == {"unused": 0, "operator": 1}


def test_an_ambiguous_id_ends_no_context(engine: Engine) -> None:
    opened(engine, context(7), context(7, BERT))
    with pytest.raises(InvalidArgumentError, match="context ab/7 is ambiguous"):
        evict_context(engine, "ab/7")
    assert len(engine.contexts.all()) == 2


@pytest.mark.parametrize("id", ["", "abcd0123", "abcd0123/", "/7", "abcd0123/x", "abcd01234/7"])
def test_an_id_that_is_none_of_a_context_is_explained(engine: Engine, id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not the id of a context; one looks like 0123abcd/7"):
        evict_context(engine, id)


def test_a_context_that_is_not_there_is_told(engine: Engine) -> None:
    opened(engine, context(7))
    with pytest.raises(UnknownNameError, match="there is no context abcd0123/8 here"):
        evict_context(engine, "abcd0123/8")


def test_contexts_that_are_unused_are_ended_and_others_are_not(engine: Engine, requests: Requests) -> None:
    opened(engine, context(1), context(2), context(3, BERT))
    requests.add(pb.CallRequest(context=context(2).to_message()))
    assert evict_unused(engine, 3600.0) == []
    assert sorted(evict_unused(engine, 0.0)) == ["abcd0123/1", "abff4567/3"]
    assert [each.id for each in engine.contexts.all()] == [context(2)]
    assert engine.counters.contexts_ended["operator"] == 2


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_an_age_is_not_negative(engine: Engine, seconds: float) -> None:
    opened(engine, context(1))
    with pytest.raises(InvalidArgumentError, match="the age of unused contexts is a number of seconds"):
        evict_unused(engine, seconds)
    assert len(engine.contexts.all()) == 1


def test_an_owner_that_has_stopped_ends_nothing(engine: Engine) -> None:
    engine.sessions.open(ANNA)
    opened(engine, context(1))
    engine.gate.state = Gate.State.STOPPED
    for end, what in ((evict_session, "ab"), (evict_context, "ab/1"), (evict_unused, 0.0)):
        with pytest.raises(UnavailableError):
            end(engine, what)  # type: ignore[operator]
    assert len(engine.sessions.all()) == len(engine.contexts.all()) == 1


# The owner's own limit


@pytest.fixture
def impatient() -> Iterator[Engine]:
    """An owner that ends contexts as soon as they are unused."""
    engine = Engine("ps0", AllowList(), limits=Limits(max_context_seconds=1e-9))
    yield engine
    engine.close()


def test_contexts_above_the_limit_are_ended_with_the_reason(impatient: Engine) -> None:
    requests = Requests(impatient)
    opened(impatient, context(1), context(2))
    requests.add(pb.CallRequest(context=context(2).to_message()))
    end_unused(impatient)
    assert [each.id for each in impatient.contexts.all()] == [context(2)]
    with pytest.raises(ContextLostError, match=r"no request had used it for 1e-09 s, the limit max_context_seconds"):
        impatient.contexts.open(context(1))
    assert impatient.counters.contexts_ended == {"unused": 1, "operator": 0}


def test_without_a_limit_contexts_stay() -> None:
    engine = Engine("ps0", AllowList(), limits=Limits(max_context_seconds=0.0))
    opened(engine, context(1))
    end_unused(engine)
    assert len(engine.contexts.all()) == 1
    engine.close()


def test_below_the_limit_contexts_stay(engine: Engine) -> None:
    opened(engine, context(1))
    end_unused(engine)
    assert len(engine.contexts.all()) == 1
