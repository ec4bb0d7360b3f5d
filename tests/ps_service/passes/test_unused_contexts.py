"""Contexts that are unused, or that their owner ends: which ones those are, and what is said of them afterwards."""

from __future__ import annotations

import pytest

from ps_service.group.peers import Membership, Peers
from ps_service.passes.contexts import Contexts
from ps_service.passes.records import Record
from ps_wire.errors import ContextEndedError, ContextLostError
from ps_wire.refs import CallKey, ContextId
from tests.ps_service.clock import Clock

TRAINER = b"t" * 16
FIRST, SECOND = ContextId(TRAINER, 1), ContextId(TRAINER, 2)
CALL = CallKey(TRAINER, 1)
WHY = "its operator ended it"


@pytest.fixture
def contexts(clock: Clock) -> Contexts:
    return Contexts(clock=clock)


@pytest.mark.parametrize("use", ["open", "get", "find"])
def test_every_use_counts(contexts: Contexts, clock: Clock, use: str) -> None:
    contexts.open(FIRST)
    contexts.open(SECOND)
    clock.now += 6
    getattr(contexts, use)(SECOND)
    clock.now += 4
    assert [each.id for each in contexts.unused(10, ())] == [FIRST]
    assert [each.id for each in contexts.unused(10.5, ())] == []


def test_contexts_of_unanswered_requests_are_in_use(contexts: Contexts, clock: Clock) -> None:
    contexts.open(FIRST)
    clock.now += 100
    assert contexts.unused(10, {FIRST}) == []
    clock.now += 9
    assert contexts.unused(10, ()) == [], "the request ended only nine seconds ago"
    clock.now += 1
    assert [each.id for each in contexts.unused(10, ())] == [FIRST]


def test_one_that_the_owner_ended_is_lost_until_its_trainer_ends_it(contexts: Contexts) -> None:
    context = contexts.open(FIRST)
    contexts.open(SECOND)
    assert contexts.lose(FIRST, WHY)
    assert not contexts.lose(FIRST, WHY)
    for use in (contexts.open, contexts.get, contexts.find):
        with pytest.raises(ContextLostError, match=rf"{FIRST} \({WHY}\): run forward again"):
            use(FIRST)
    joined = Membership()
    joined.join(Peers())
    for running in (
        lambda: context.add(CALL, Record([], None, 0, [], [])),
        lambda: context.record(CALL),
        lambda: context.gradients_of([]),
        lambda: context.calling(joined, ()),
    ):
        with pytest.raises(ContextLostError, match=WHY):
            running()
    assert contexts.find(SECOND).id == SECOND
    contexts.end(FIRST)
    with pytest.raises(ContextEndedError):
        contexts.open(FIRST)


def test_a_checkpoint_knows_those_as_lost(contexts: Contexts) -> None:
    contexts.open(FIRST)
    contexts.open(SECOND)
    contexts.lose(FIRST, WHY)
    ((ended, lost),) = contexts.over().values()
    assert (lost, FIRST.number in ended) == ({1, 2}, False)
    again = Contexts()
    again.put_over(TRAINER, ended, lost)
    with pytest.raises(ContextLostError, match="the owner was stopped while it was open") as caught:
        again.find(FIRST)
    assert caught.value.drained
    with pytest.raises(ContextLostError, match="the owner was stopped"):
        again.open(FIRST)


def test_a_trainer_that_never_ends_any_costs_no_more_than_some_thousands(contexts: Contexts) -> None:
    for number in range(1, 10_001):
        contexts.open(ContextId(TRAINER, number))
        contexts.lose(ContextId(TRAINER, number), WHY)
    ((ended, lost),) = contexts.over().values()
    assert len(lost) <= 4096
    for number in (1, 5000):
        assert number in ended or number in lost
        with pytest.raises((ContextEndedError, ContextLostError)):
            contexts.open(ContextId(TRAINER, number))
    with pytest.raises(ContextLostError):
        contexts.open(ContextId(TRAINER, 10_000))


def test_many_trainers_cost_no_more_than_some_thousands(contexts: Contexts) -> None:
    for number in range(1, 5001):
        id = ContextId(number.to_bytes(16, "big"), 1)
        contexts.open(id, b"caller".ljust(16))
        contexts.lose(id, WHY)
    assert len(contexts.over()) <= 4096


def test_lost_contexts_are_dropped_with_their_session(contexts: Contexts) -> None:
    contexts.open(FIRST)
    contexts.lose(FIRST, WHY)
    contexts.forget(TRAINER)
    assert contexts.over() == {}
