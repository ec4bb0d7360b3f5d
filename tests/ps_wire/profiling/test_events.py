"""Tests of the events of a profile: their limits in messages, and their place in the time of a request."""

from __future__ import annotations

import pytest

from ps_wire.profiling import events, ranges
from ps_wire.profiling.events import MAX_EVENTS, MAX_NAME, MAX_PROFILE_BYTES, REMOTE, Event
from ps_wire.profiling.ranges import Range
from ps_wire.v1.probes_pb2 import Profile

KEY = "rpc_sync#torch.add(worker0 -> worker1)"


def test_events_come_back_under_the_name_of_the_request() -> None:
    answer = Profile()
    nested = Event("rpc_async#f(worker1 -> worker2)", 1300, 500, 7, 1, asynchronous=True)
    below = Event(f"{nested.name}{REMOTE}aten::mul", 1400, 50, 9, 2)
    own = Event("aten::add", 1200, 100, 4, memory_bytes=-8, shapes=[[2, 3], []])
    events.write(answer, 1000, 2000, [own, nested, below])
    made = asked(500, 3000, answer)
    whole, *remote = events.of_range(made)
    assert whole == Event(KEY, 500, 2500, made.thread, 0, asynchronous=True)
    expected = [own._replace(node=1), nested, below]
    assert remote == [each._replace(name=KEY + REMOTE + each.name, shapes=list(each.shapes)) for each in expected]


def test_times_of_another_clock_are_moved_to_the_middle_of_the_request() -> None:
    answer = Profile()
    events.write(answer, 9_000_000, 9_000_600, [Event("aten::add", 9_000_200, 100, 1)])
    _, remote = events.of_range(asked(1000, 2000, answer))
    assert remote.start_ns == 1000 + (1000 - 600) // 2 + 200


def test_a_profile_is_bounded_in_number() -> None:
    answer = Profile()
    events.write(answer, 0, 10, (Event("e", 1, 1, 1) for _ in range(MAX_EVENTS + 5)))
    assert len(answer.events) == MAX_EVENTS
    assert answer.left_out == 5


def test_a_profile_is_bounded_in_bytes() -> None:
    answer = Profile()
    many = [Event("e" * 5000, 1, 1, 1, shapes=[[1 << 40] * 100] * 100) for _ in range(MAX_EVENTS)]
    events.write(answer, 0, 10, many)
    assert {len(event.name) for event in answer.events} == {MAX_NAME}
    largest = max(event.ByteSize() for event in answer.events)
    assert answer.ByteSize() < MAX_PROFILE_BYTES + largest + 10 * len(answer.events)
    assert answer.left_out == MAX_EVENTS - len(answer.events) > 0


def test_an_owner_that_sends_more_is_not_believed() -> None:
    answer = Profile(began_ns=1, duration_ns=1 << 63)
    for _ in range(MAX_EVENTS + 5):
        answer.events.add(name="e" * 2 * MAX_NAME)
    _, *remote = events.of_range(asked(1, 2, answer))
    assert len(remote) == MAX_EVENTS
    assert len(remote[0].name) == len(KEY + REMOTE) + MAX_NAME


def test_a_request_without_an_answer_has_no_events() -> None:
    assert list(events.of_range(Range(KEY, 0, 1))) == []


def test_the_requests_of_a_thread_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MAX_RANGES", 2)
    with ranges.collecting() as made:
        assert [ranges.begin(KEY, 0, 1) is None for _ in range(3)] == [False, False, True]
        assert ranges.take() == made
        assert ranges.begin(KEY, 0, 1) is not None


def asked(began_ns: int, ended_ns: int, answer: Profile) -> Range:
    """A request of worker0 to worker1."""
    made = Range(KEY, 0, 1)
    made.began_ns, made.ended_ns, made.profile = began_ns, ended_ns, answer
    return made
