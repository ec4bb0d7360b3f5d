"""Tests of the checks of numbers: what they let through, and what they say otherwise."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import LONGEST_SECONDS, check_finite, check_seconds, check_timeout, check_whole

NO_NUMBERS: list[Any] = [math.nan, math.inf, -math.inf, 10**400, -(10**400), True, None, "1", 1j]


@pytest.mark.parametrize("value", [0, 0.0, -0.0, 5e-324, 1, LONGEST_SECONDS])
def test_times_are_let_through(value: float) -> None:
    check_seconds("wait", value)
    check_timeout(value)
    check_timeout(None)


@pytest.mark.parametrize("value", [*NO_NUMBERS, -1, -5e-324, LONGEST_SECONDS + 1, 1e300])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^wait is a number of seconds from 0 to 1,000,000,000, not "):
        check_seconds("wait", value)


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_not_finite_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^lr is a finite number, not "):
        check_finite("lr", value)


def test_finite_numbers_have_bounds() -> None:
    for value in (-1e308, 0, 10**300):
        check_finite("lr", value)
    check_finite("beta", 0.0, 0.0, below=1.0)
    for value, words in ((-1, "at least 0 and less than 1"), (1.0, "at least 0 and less than 1")):
        with pytest.raises(InvalidArgumentError, match=f"beta is {words}, not {value}"):
            check_finite("beta", value, 0.0, below=1.0)
    with pytest.raises(InvalidArgumentError, match="share is at least 0 and at most 1, not 2"):
        check_finite("share", 2, 0.0, 1.0)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1.0, 0, 1_000_001])
def test_what_is_no_whole_number_within_bounds_is_refused(value: Any) -> None:
    check_whole("count", 1, 1, 1_000_000)
    with pytest.raises(InvalidArgumentError, match="count is a whole number from 1 to 1,000,000, not "):
        check_whole("count", value, 1, 1_000_000)
