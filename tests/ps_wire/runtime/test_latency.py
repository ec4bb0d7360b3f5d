"""Latency: an average in which later measurements count most."""

from __future__ import annotations

import math
import time

import pytest

from ps_wire.runtime.latency import INLINE_SECONDS, Latency


def test_nothing_is_short_before_it_was_measured() -> None:
    assert Latency().seconds == math.inf


def test_one_long_measurement_is_forgotten_after_a_while() -> None:
    latency = Latency()
    latency.note(INLINE_SECONDS / 2)
    assert latency.seconds == INLINE_SECONDS / 2
    latency.note(10 * INLINE_SECONDS)
    assert latency.seconds > INLINE_SECONDS
    for _ in range(30):
        latency.note(INLINE_SECONDS / 2)
    assert latency.seconds < INLINE_SECONDS


def test_the_wait_for_the_interpreter_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    latency = Latency()
    clocks = {"perf_counter": 100.0, "thread_time": 5.0}
    for name in clocks:
        monkeypatch.setattr(time, name, lambda name=name: clocks[name])
    began = latency.begin()
    clocks.update(perf_counter=100.004, thread_time=5.0001)
    latency.end(began)
    assert latency.seconds == pytest.approx(0.0001)
    assert latency.is_short


def test_work_that_waits_for_something_else_is_as_long_as_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    latency = Latency()
    clocks = {"perf_counter": 100.0, "thread_time": 5.0}
    for name in clocks:
        monkeypatch.setattr(time, name, lambda name=name: clocks[name])
    began = latency.begin()
    clocks.update(perf_counter=100.1, thread_time=5.0001)
    latency.end(began)
    assert latency.seconds == pytest.approx(0.1)
    assert not latency.is_short


def test_work_much_larger_than_the_largest_short_one_is_not_short() -> None:
    latency = Latency()
    latency.note(INLINE_SECONDS / 2, 100)
    latency.note(INLINE_SECONDS / 2, 10)
    assert latency.is_short_for(400)
    assert not latency.is_short_for(401)
    latency.note(2 * INLINE_SECONDS, 10_000)
    assert latency.largest == 100, "long work says nothing of what is short"
