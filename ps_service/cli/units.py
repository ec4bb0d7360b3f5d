"""Sizes, durations and rates as text for people."""

from __future__ import annotations

from ps_service.monitoring import page_formats


def size(nbytes: float) -> str:
    """A number of bytes as text, such as `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def duration(seconds: float) -> str:
    """A duration as text, in at most two units, such as `2 h 5 min`."""
    return f"{seconds:.1f} s" if seconds < 10 else page_formats.span(seconds)


def brief(seconds: float) -> str:
    """A duration in one unit, of at most seven characters, such as `2.1 h`."""
    for unit, length in (("d", 24 * 3600), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}" if seconds < 99.95 * length else f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def rate(per_second: float) -> str:
    """A rate with at least two digits that tell something."""
    if not per_second:
        return "0"
    if per_second < 0.01:
        return f"{per_second:.1e}"
    return f"{per_second:.2f}" if per_second < 1 else f"{per_second:.1f}" if per_second < 100 else f"{per_second:,.0f}"


def milliseconds(seconds: float) -> str:
    """A short duration in milliseconds."""
    return f"{1000 * seconds:.2f} ms" if seconds < 1 else f"{1000 * seconds:,.0f} ms"
