"""Counters: every request is counted once, and the rate looks back over ten whole seconds."""

from __future__ import annotations

import pytest

from ps_service.state.counters import WINDOW_SECONDS, Counters, OperationCount
from tests.ps_service.threads import Worker


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.5

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counters(clock: Clock) -> Counters:
    return Counters(clock)


def test_operations_are_counted_by_name(counters: Counters) -> None:
    counters.count("call", 0.25, failed=False)
    counters.count("call", 0.5, failed=True)
    counters.count("step", 1.0, failed=False)
    assert counters.operations() == {"call": OperationCount(2, 1, 0.75), "step": OperationCount(1, 0, 1.0)}


def test_a_snapshot_does_not_change(counters: Counters) -> None:
    counters.count("call", 0.25, failed=False)
    before = counters.operations()
    counters.count("call", 0.25, failed=False)
    counters.count("step", 0.25, failed=False)
    assert before == {"call": OperationCount(1, 0, 0.25)}


def test_an_idle_owner_has_no_calls_per_second(counters: Counters) -> None:
    assert counters.calls_per_second() == 0.0


def test_the_rate_is_over_ten_whole_seconds(counters: Counters, clock: Clock) -> None:
    for _ in range(30):
        counters.count("call", 0.1, failed=False)
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
            counters.count("call", 0.1, failed=False)
        clock.now += 1
    assert counters.calls_per_second() == 4.0


def test_a_pause_is_told_too(counters: Counters, clock: Clock) -> None:
    for _ in range(5):
        counters.count("call", 0.1, failed=False)
    clock.now += 4
    for _ in range(5):
        counters.count("call", 0.1, failed=False)
    clock.now += 1
    assert counters.calls_per_second() == 1.0
    clock.now += 6
    assert counters.calls_per_second() == 0.5


def test_memory_does_not_grow_with_time(counters: Counters, clock: Clock) -> None:
    for _ in range(1000):
        counters.count("call", 0.1, failed=False)
        clock.now += 1
    assert len(counters._recent) == WINDOW_SECONDS + 1


def test_counts_from_many_threads_all_arrive(counters: Counters) -> None:
    def count() -> None:
        for _ in range(500):
            counters.count("call", 1.0, failed=True)

    for worker in [Worker(count) for _ in range(4)]:
        worker.result()
    assert counters.operations() == {"call": OperationCount(2000, 2000, 2000.0)}
