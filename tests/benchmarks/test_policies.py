"""Tests the comparison of policies with real processes."""

from __future__ import annotations

import psutil
import pytest

import trainer_client as tc
from benchmarks.policies import CASES, PAUSE_EVERY, POLICIES, SLOW_SECONDS, TRAINERS, run, waits


@pytest.mark.usefixtures("forked_programs")
def test_the_others_go_on_when_a_trainer_is_killed() -> None:
    before = set(psutil.Process().children(recursive=True))
    rates = run(POLICIES["Quorum(3, of=4)"], "one killed", seconds=0.6)
    assert rates.fast > 0 and rates.slow == 0
    assert not set(psutil.Process().children(recursive=True)) - before


def test_every_policy_is_compared() -> None:
    assert {type(policy) for policy in POLICIES.values()} == {
        tc.policies.Async,
        tc.policies.Sync,
        tc.policies.BoundedStaleness,
        tc.policies.Quorum,
    }
    assert CASES == ("equal", "one slow", "pauses in turn", "one killed")


def test_trainers_that_pause_in_turn_pause_in_different_passes() -> None:
    found = [waits("pauses in turn", number) for number in range(TRAINERS)]
    assert {len(each) for each in found} == {PAUSE_EVERY}
    assert sorted(each.index(SLOW_SECONDS) for each in found) == [0, 4, 8, 12]
    assert all(each.count(SLOW_SECONDS) == 1 for each in found)
