"""Tests the rates of steps, fast and slow ones, and the quantiles of their staleness."""

from __future__ import annotations

import pytest

from ps_service.measures.pace import LATEST, WINDOW_SECONDS, Pace
from tests.ps_service.clock import Clock


@pytest.fixture
def pace(clock: Clock) -> Pace:
    return Pace(clock)


def test_nothing_has_no_rate_and_no_staleness(pace: Pace) -> None:
    assert (pace.steps, pace.per_second(), pace.staleness()) == (0, 0.0, None)


def test_the_rate_is_that_of_the_last_ten_whole_seconds(pace: Pace, clock: Clock) -> None:
    for second in range(30):
        for _ in range(5 if second < 20 else 7):
            pace.count()
        clock.now += 1
    assert pace.per_second() == 7.0
    assert pace.steps == 170


def test_a_rate_is_right_from_the_second_second_on(pace: Pace, clock: Clock) -> None:
    for _ in range(20):
        pace.count()
    assert pace.per_second() == 0.0, "the second is not over"
    clock.now += 1
    assert pace.per_second() == 20.0


@pytest.mark.parametrize("distance", [2, 7, 45, 600])
def test_slow_steps_have_the_rate_of_their_distance(pace: Pace, clock: Clock, distance: int) -> None:
    for _ in range(4):
        pace.count()
        clock.now += distance
    assert pace.per_second() == pytest.approx(1 / distance)
    clock.now += 2.5 * distance + WINDOW_SECONDS
    assert pace.per_second() == 0.0, "they have stopped"


def test_fast_steps_that_stop_have_no_rate_soon(pace: Pace, clock: Clock) -> None:
    for _ in range(20):
        for _ in range(1000):
            pace.count()
        clock.now += 1
    assert pace.per_second() == 1000.0
    clock.now += WINDOW_SECONDS
    assert pace.per_second() == 0.0


def test_a_single_step_long_ago_has_no_rate(pace: Pace, clock: Clock) -> None:
    pace.count()
    clock.now += 3600
    assert pace.per_second() < 0.001


def test_several_steps_of_one_pass_count_once(pace: Pace) -> None:
    for of in ("one", "one", "other", None, None, "one"):
        pace.count(of)
    assert pace.steps == 5


def test_quantiles_are_those_of_the_latest_steps(pace: Pace) -> None:
    for _ in range(LATEST):
        pace.count(staleness=1000)
    for number in range(LATEST):
        pace.count(staleness=number)
    pace.count()
    found = pace.staleness()
    assert found == (LATEST // 2 - 1, 506), "the smallest that half and 99 % do not exceed"
    few = Pace()
    few.count(staleness=3)
    assert few.staleness() == (3, 3)
