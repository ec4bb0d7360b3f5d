"""A bucket lets a burst pass, and then a rate."""

from __future__ import annotations

import pytest

from ps_service.quotas.bucket import Bucket


def test_a_burst_passes_and_then_the_rate() -> None:
    bucket, now, passed = Bucket(0.0), 0.0, []
    for _ in range(30):
        now += bucket.wait(1.0, 10.0, 5.0, now)
        bucket.take(1.0, 10.0, now)
        passed.append(now)
    assert passed[4] == 0.0
    assert passed[5] == pytest.approx(0.1)
    assert passed[-1] == pytest.approx(2.5)


def test_a_debt_is_paid_before_more_is_taken() -> None:
    bucket = Bucket(0.0)
    bucket.take(7.0, 2.0, 0.0)
    assert bucket.wait(0.0, 2.0, 2.0, 1.0) == pytest.approx(1.5)
    assert bucket.wait(0.0, 2.0, 2.0, 100.0) == 0.0
    bucket.take(2.0, 2.0, 100.0)
    assert bucket.wait(0.0, 2.0, 2.0, 100.0) == 0.0, "no credit was saved, and the bucket was full"
    assert bucket.wait(1.0, 2.0, 2.0, 100.0) == pytest.approx(0.5)
