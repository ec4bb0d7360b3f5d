"""Tests the comparison of policies with real processes."""

from __future__ import annotations

import psutil

import trainer_client as tc
from benchmarks.policies import CASES, POLICIES, run


def test_the_others_go_on_when_a_trainer_is_killed() -> None:
    before = set(psutil.Process().children(recursive=True))
    rates = run(POLICIES["Quorum(3, of=4)"], "one killed", seconds=0.6)
    assert rates.fast > 0 and rates.slow == 0
    assert not set(psutil.Process().children(recursive=True)) - before


def test_every_policy_is_compared() -> None:
    assert {type(policy) for policy in POLICIES.values()} == {tc.Async, tc.Sync, tc.BoundedStaleness, tc.Quorum}
    assert CASES == ("equal", "one slow", "one killed")
