"""What trainers of the group report, as /values.json and /values.csv have it: the curves of all owners."""

from __future__ import annotations

import csv
import io
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ps_service.monitoring.group_watch import GroupWatch
    from ps_service.monitoring.watched_curve import WatchedCurve
    from ps_service.monitoring.watched_owner import WatchedOwner

COLUMNS: Final = (
    *("owner", "optimizer", "value", "first_version", "last_version"),
    *("mean", "min", "max", "count", "not_finite", "time_seconds"),
)
"""The columns of the CSV file."""

_OF_POINT: Final = (
    *("first_version", "last_version", "mean", "low", "high"),
    *("finite", "not_finite", "time_seconds"),
)
"""The fields of a point behind the names, in that order."""

_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""How a text begins that programs for spreadsheets take for a formula."""


def described(watch: GroupWatch) -> dict[str, Any]:
    """The curves of the group. docs/page.md describes the fields."""
    return {
        "time_seconds": round(time.time(), 3),
        "values": [{"owner": owner.name, **curve.as_plain()} for owner, curve in _curves(watch)],
        "left_out": {owner.name: owner.values_left_out for owner in watch.owners.values() if owner.values_left_out},
    }


def exported(watch: GroupWatch) -> str:
    """The same as CSV, with a line for each point."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_lines(watch))
    return file.getvalue()


def listed(watch: GroupWatch, most: int) -> list[dict[str, Any]]:
    """At most so many curves of the group, each in one row."""
    found = []
    for owner, curve in _curves(watch):
        rows = list(curve.rows())
        finite = [each for each in rows if each["finite"]]
        found.append(
            {
                **{"owner": owner.name, "optimizer": curve.title, "value": curve.name, "ended": curve.ended},
                "latest": finite[-1]["mean"] if finite else None,
                "min": min((each["low"] for each in finite), default=None),
                "max": max((each["high"] for each in finite), default=None),
                "count": sum(each["finite"] for each in rows),
                "not_finite": sum(each["not_finite"] for each in rows),
                "version": rows[-1]["last_version"] if rows else None,
            }
        )
        if len(found) == most:
            break
    return found


def _curves(watch: GroupWatch) -> Iterator[tuple[WatchedOwner, WatchedCurve]]:
    for owner in watch.owners.values():
        for curve in owner.curves.values():
            yield owner, curve


def _lines(watch: GroupWatch) -> Iterator[tuple[Any, ...]]:
    for owner, curve in _curves(watch):
        about = tuple(map(_text, (owner.name, curve.title, curve.name)))
        for each in curve.rows():
            yield (*about, *(each[name] for name in _OF_POINT))


def _text(text: str) -> str:
    """A text that no program for spreadsheets takes for a formula: trainers have chosen it."""
    return f"'{text}" if text.startswith(_FORMULAS) else text
