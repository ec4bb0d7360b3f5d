"""Tests of what an owner remembers of passes that may be run again."""

from __future__ import annotations

import pytest

from ps_service.passes.runs import AppliedRun, Runs
from ps_wire.errors import ContextEndedError

ONE, OTHER = b"a" * 16, b"b" * 16


def test_attempts_of_a_pass_share_what_was_applied() -> None:
    runs = Runs()
    runs.of(ONE, 1)[7] = {0: 1}
    assert runs.of(ONE, 1) == {7: {0: 1}}
    assert runs.of(ONE, 2) == runs.of(OTHER, 1) == {}


def test_runs_that_are_over_are_forgotten() -> None:
    runs = Runs()
    for number in range(1, 5):
        runs.of(ONE, number)[7] = {0: 1}
    runs.of(OTHER, 1)[7] = {0: 1}
    assert runs.of(ONE, 5, runs_from=3) == {}
    assert {(each.trainer, each.run) for each in runs.all()} == {(ONE, 3), (ONE, 4), (OTHER, 1)}
    assert runs.of(ONE, 3, runs_from=4) == {7: {0: 1}}, "one that is said to be over, and is not"


def test_what_comes_after_its_run_was_forgotten_can_be_refused() -> None:
    runs = Runs()
    runs.of(ONE, 1)[7] = {0: 1}
    runs.of(ONE, 3, runs_from=3, may_be_over=False)
    for run in (1, 2):
        with pytest.raises(ContextEndedError, match="given this push up"):
            runs.of(ONE, run, may_be_over=False)
    assert runs.of(ONE, 3, may_be_over=False) == runs.of(OTHER, 1, may_be_over=False) == {}
    assert [each.run for each in runs.all()] == []


def test_they_are_bounded_and_the_latest_stay() -> None:
    runs = Runs()
    for number in range(1, 1000):
        runs.of(ONE, number)[7] = {0: 1}
    assert [each.run for each in runs.all()] == list(range(744, 1000))
    for number in range(5000):
        runs.of(number.to_bytes(16, "big"), 1)[7] = {0: 1}
    assert len(runs.all()) == 4096 and not runs.of(ONE, 999)


def test_a_checkpoint_has_them() -> None:
    runs, again = Runs(), Runs()
    runs.of(ONE, 3)[7] = {0: 4, 2: 5}
    runs.of(ONE, 3)[8] = {1: 9}
    again.restore(runs.all())
    assert again.of(ONE, 3) == {7: {0: 4, 2: 5}, 8: {1: 9}}
    assert runs.all() == [AppliedRun(ONE, 3, 7, {0: 4, 2: 5}), AppliedRun(ONE, 3, 8, {1: 9})]
