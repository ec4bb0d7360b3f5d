"""Latency: averages in which later measurements count most, one for each power of two of the size."""

from __future__ import annotations

import math
import time

import pytest

from ps_wire.runtime.latency import INLINE_SECONDS, Latency


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The clocks of `time` that are read, in seconds; they stand still until a test changes them."""
    clocks = {"perf_counter": 100.0, "thread_time": 5.0}
    for name in clocks:
        monkeypatch.setattr(time, name, lambda name=name: clocks[name])
    return clocks


def test_nothing_is_short_before_it_was_measured() -> None:
    assert Latency().expected() == math.inf
    assert not Latency().is_short


def test_one_long_measurement_is_forgotten_after_a_while() -> None:
    latency = Latency()
    latency.note(INLINE_SECONDS / 2)
    assert latency.expected() == INLINE_SECONDS / 2
    latency.note(10 * INLINE_SECONDS)
    assert not latency.is_short
    for _ in range(30):
        latency.note(INLINE_SECONDS / 2)
    assert latency.is_short


def test_the_wait_for_the_interpreter_does_not_count(clocks: dict[str, float]) -> None:
    latency = Latency()
    began = latency.begin()
    clocks.update(perf_counter=100.004, thread_time=5.0001)
    latency.end(began)
    assert latency.expected() == pytest.approx(0.0001)
    assert latency.is_short


def test_work_that_waits_for_something_else_is_as_long_as_its_wait(clocks: dict[str, float]) -> None:
    latency = Latency()
    began = latency.begin()
    clocks.update(perf_counter=100.1, thread_time=5.0001)
    latency.end(began)
    assert latency.expected() == pytest.approx(0.1)
    assert not latency.is_short


def test_work_of_another_size_has_an_average_of_its_own() -> None:
    latency = Latency()
    latency.note(1e-6, 100)
    latency.note(1e-2, 10_000)
    assert latency.expected(100) == latency.expected(64) == latency.expected(127) == 1e-6
    assert latency.expected(10_000) == 1e-2
    assert latency.expected(1_000) == math.inf, "nothing of this size was measured"
    assert latency.expected() == math.inf


def test_after_work_that_took_far_longer_than_expected_nothing_is_short_for_a_while(
    clocks: dict[str, float],
) -> None:
    latency = Latency()

    def work(seconds: float, size: int = 0) -> None:
        began = latency.begin()
        for name in clocks:
            clocks[name] += seconds
        latency.end(began, size)

    work(2.0, 10_000)
    work(1e-4)
    assert latency.is_short, "nothing was known of the first large work, so that it was no surprise"
    work(2.0)
    for _ in range(50):
        work(1e-4)
        work(1e-4, 100)
    assert not latency.is_short
    assert latency.expected(100) == latency.seconds == math.inf
    clocks["perf_counter"] += 100 * 2.0
    assert latency.is_short and latency.expected(100) < INLINE_SECONDS
