"""Tests of the latencies of many kinds of work."""

from __future__ import annotations

import math
import time

from ps_wire.runtime.latency import Latencies, busy_since


def test_work_of_one_kind_has_one_latency() -> None:
    latencies: Latencies[str] = Latencies()
    latency = latencies.of("a")
    latency.note(0.5)
    assert latencies.of("a") is latency
    assert latencies.of("b").seconds == math.inf


def test_only_so_many_are_kept() -> None:
    latencies: Latencies[int] = Latencies(most=3)
    first = latencies.of(1)
    assert latencies.of(2) and latencies.of(3) and latencies.of(1) is first
    latencies.of(4)
    assert latencies.of(1) is not first


def test_the_measurement_counts_processor_time() -> None:
    began = (time.perf_counter(), time.thread_time())
    until = time.thread_time() + 0.002
    while time.thread_time() < until:
        pass
    assert busy_since(began) >= 0.002
