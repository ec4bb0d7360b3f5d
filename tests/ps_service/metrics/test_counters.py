"""Tests that every request is counted once, and that the rate covers ten whole seconds."""

from __future__ import annotations

import pytest

from ps_service.metrics.counters import DURATION_BOUNDS, WINDOW_SECONDS, Counters
from ps_wire.v1.errors_pb2 import ErrorCode
from tests.ps_service.clock import Clock
from tests.ps_service.threads import Worker

REMOTE = ErrorCode.ERROR_REMOTE


@pytest.fixture
def counters(clock: Clock) -> Counters:
    return Counters(clock)


def told(counters: Counters) -> dict[str, tuple[int, int, float]]:
    return {
        name: (each.durations.count, each.errors, each.durations.sum) for name, each in counters.operations().items()
    }


def test_operations_are_counted_by_name(counters: Counters) -> None:
    counters.count("call", 0.25)
    counters.count("call", 0.5, REMOTE)
    counters.count("step", 1.0)
    assert told(counters) == {"call": (2, 1, 0.75), "step": (1, 0, 1.0)}


def test_parts_of_a_request_are_counted_as_operations_of_their_own(counters: Counters, clock: Clock) -> None:
    clock.now = 100.0
    counters.note(("step", 0.25, 0, 100))
    counters.note(("end_context", 0.125, REMOTE, 100))
    counters.count("backward", 1.0)
    assert told(counters) == {"step": (1, 0, 0.25), "end_context": (1, 1, 0.125), "backward": (1, 0, 1.0)}
    clock.now += 1.0
    assert counters.calls_per_second() == 3 / WINDOW_SECONDS


def test_a_snapshot_does_not_change(counters: Counters) -> None:
    counters.count("call", 0.25)
    before = counters.operations()
    counters.count("call", 0.25)
    counters.count("step", 0.25)
    assert before.keys() == {"call"}
    assert (before["call"].durations.count, before["call"].durations.sum) == (1, 0.25)


def test_a_duration_falls_into_the_bucket_of_the_first_bound_that_it_does_not_exceed(counters: Counters) -> None:
    for seconds in (0.0, 0.0001, 0.00011, 50.0, 50.1, 3600.0):
        counters.count("call", seconds)
    durations = counters.operations()["call"].durations
    assert durations.bounds == DURATION_BOUNDS
    assert durations.counts == (2, 1, *[0] * (len(DURATION_BOUNDS) - 3), 1, 2)
    assert durations.cumulative[-2:] == [4, 6]


def test_errors_are_counted_by_code_also_of_requests_that_are_not_taken_up(counters: Counters) -> None:
    counters.count("call", 0.1, REMOTE)
    counters.count("step", 0.1, ErrorCode.ERROR_CONTEXT_ENDED)
    counters.count("step", 0.1)
    counters.refuse(ErrorCode.ERROR_OVERLOADED)
    counters.refuse(REMOTE)
    assert counters.errors() == {REMOTE: 2, ErrorCode.ERROR_CONTEXT_ENDED: 1, ErrorCode.ERROR_OVERLOADED: 1}
    assert told(counters) == {"call": (1, 1, 0.1), "step": (2, 1, 0.2)}


def test_how_long_requests_waited_for_a_thread_is_counted(counters: Counters) -> None:
    counters.queued(0.002)
    counters.queued(3.0)
    assert (counters.queue_seconds().count, counters.queue_seconds().sum) == (2, 3.002)
    assert counters.operations() == {}, "they are not finished"


def test_an_idle_owner_has_no_calls_per_second(counters: Counters) -> None:
    assert counters.calls_per_second() == 0.0


def test_the_rate_is_over_ten_whole_seconds(counters: Counters, clock: Clock) -> None:
    for _ in range(30):
        counters.count("call", 0.1)
    assert counters.calls_per_second() == 0.0, "the second is not over"
    clock.now += 1
    assert counters.calls_per_second() == 3.0
    clock.now += WINDOW_SECONDS - 1
    assert counters.calls_per_second() == 3.0
    clock.now += 1
    assert counters.calls_per_second() == 0.0


def test_a_steady_rate_is_told_as_it_is(counters: Counters, clock: Clock) -> None:
    for _ in range(3 * WINDOW_SECONDS):
        for _ in range(4):
            counters.count("call", 0.1)
        clock.now += 1
    assert counters.calls_per_second() == 4.0


def test_a_pause_is_told_too(counters: Counters, clock: Clock) -> None:
    for _ in range(5):
        counters.count("call", 0.1)
    clock.now += 4
    for _ in range(5):
        counters.count("call", 0.1)
    clock.now += 1
    assert counters.calls_per_second() == 1.0
    clock.now += 6
    assert counters.calls_per_second() == 0.5


def test_memory_does_not_grow_with_time(counters: Counters, clock: Clock) -> None:
    for _ in range(1000):
        counters.count("call", 0.1)
        clock.now += 1
    assert len(counters._recent) == WINDOW_SECONDS + 1


def test_counts_from_many_threads_all_arrive(counters: Counters) -> None:
    def count() -> None:
        for _ in range(500):
            counters.count("call", 1.0, REMOTE)

    for worker in [Worker(count) for _ in range(4)]:
        worker.result()
    assert told(counters) == {"call": (2000, 2000, 2000.0)}
    assert counters.errors() == {REMOTE: 2000}
