"""Checks of numbers that come from users or over the wire."""

from __future__ import annotations

import math
import sys
from typing import Any, Final

from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown

INT64: Final = range(-(1 << 63), 1 << 63)
"""The integers of 64 bits."""

LONGEST_SECONDS: Final = 1e9
"""The longest time that may be asked for, in seconds: thirty years. Timers and locks can wait so long."""


def no_seconds(name: str, value: Any) -> InvalidArgumentError:
    """The error for a value that is no such time."""
    return InvalidArgumentError(f"{name} is a number of seconds from 0 to {LONGEST_SECONDS:,.0f}, not {shown(value)}")


def check_seconds(name: str, value: Any) -> None:
    """Raises `InvalidArgumentError` if a value is no time from 0 to `LONGEST_SECONDS`, in seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= LONGEST_SECONDS:
        raise no_seconds(name, value)


def check_timeout(value: Any) -> None:
    """Raises `InvalidArgumentError` if a value is neither such a time nor None, which is no limit."""
    if value is not None:
        check_seconds("timeout", value)


def check_finite(
    name: str, value: Any, least: float = -math.inf, most: float = math.inf, below: float = math.inf
) -> None:
    """Raises `InvalidArgumentError` if a value is no finite number within bounds."""
    # Integers may be larger than any float.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise InvalidArgumentError(f"{name} is a finite number, not {shown(value)}")
    if not least <= value <= most or not value < below:
        ends = [
            *([f"at least {least:g}"] if least > -math.inf else []),
            *([f"at most {most:g}"] if most < math.inf else []),
            *([f"less than {below:g}"] if below < math.inf else []),
        ]
        raise InvalidArgumentError(f"{name} is {' and '.join(ends)}, not {shown(value)}")


def check_whole(name: str, value: Any, least: int, most: int) -> None:
    """Raises `InvalidArgumentError` if a value is no whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgumentError(f"{name} is a whole number from {least:,} to {most:,}, not {shown(value)}")
