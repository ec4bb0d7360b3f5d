"""How the page writes numbers. `static/formats.js` does the same in the browser."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Final

NONE: Final = "–"  # noqa: RUF001 - a dash, as in tables
"""What stands where there is no number."""


def rate(value: float) -> str:
    """A number per second: `0`, `0.25`, `12.3`, `1,234`."""
    if not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def count(value: float) -> str:
    """A whole number: `1,234`."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """A number of bytes: `512 B`, `1.5 MiB`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    unit = 0
    while value >= 1024 and unit < len(units) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} {units[unit]}" if unit == 0 or value >= 99.95 else f"{value:.1f} {units[unit]}"


def seconds(value: float) -> str:
    """A duration of a request: `85 µs`, `1.25 ms`, `2.50 s`."""
    for unit, factor in (("µs", 1e6), ("ms", 1e3), ("s", 1.0)):
        scaled = value * factor
        if scaled < 999.5 or unit == "s":
            digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{0 if unit == 'µs' else digits}f} {unit}"
    raise AssertionError


def span(value: float) -> str:
    """A time that passes: `12 s`, `3 min 5 s`, `2 h 4 min`, `3 d 1 h`."""
    whole = max(int(value), 0)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def steps(value: float) -> str:
    """A staleness, in steps: `0`, `1.5`, `12`."""
    return f"{value:.0f}" if value == int(value) or value >= 9.95 else f"{value:.1f}"


def value(number: float) -> str:
    """A number that trainers have reported, such as a loss, in up to six digits: `0.412345`, `1,234.5`, `1.2e-7`."""
    if not math.isfinite(number):
        return NONE
    if number and not 1e-4 <= abs(number) < 1e7:
        digits, _, exponent = f"{number:.3e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    text = f"{Decimal(f'{number + 0.0:.5e}'):,.9f}"  # no -0
    return text.rstrip("0").rstrip(".")


def clock(value: float) -> str:
    """A moment, in the time of this host. Browsers show it in their own."""
    return time.strftime("%H:%M:%S", time.localtime(value))


def _or_none(form: Callable[[float], str], value: float | None) -> str:
    return NONE if value is None else form(value)


FILTERS: Final[dict[str, Callable[..., str]]] = {
    each.__name__: partial(_or_none, each) for each in (rate, count, size, seconds, span, steps, value, clock)
}
"""The filters of the templates."""
