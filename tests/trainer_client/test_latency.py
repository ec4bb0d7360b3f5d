"""Latency: an average in which later measurements count most."""

from __future__ import annotations

import math

from trainer_client.latency import INLINE_SECONDS, Latency


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
