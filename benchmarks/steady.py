"""Shows the steady rows: of each side the median and range of its turns, and how many times faster ours is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich import box
from rich.table import Table

from benchmarks.durable import is_durable
from benchmarks.fleet import BARE, SIDES
from benchmarks.report import Report
from benchmarks.table import COLUMNS, number

LABELS: Final = COLUMNS | {BARE: "bare program"}

_HEADINGS: Final = ("row", "unit", "side", "median (range)", "ours is faster (range)")


class Line(NamedTuple):
    """One side in a row, as text.

    Attributes:
        row: Name of the row.
        unit: Its unit.
        side: The side.
        result: Median and range of its turns.
        ratio: Median and range of its time divided by ours within a round; empty for ours.
    """

    row: str
    unit: str
    side: str
    result: str
    ratio: str


def steady(reports: Sequence[Report]) -> list[Report]:
    """The reports that are of steady rows."""
    return [report for report in reports if "range" in report and not is_durable(report)]


def unsteady(reports: Sequence[Report]) -> list[Report]:
    """The reports of the other rows."""
    return [report for report in reports if "range" not in report and "over_plain" not in report]


def lines(report: Report) -> list[Line]:
    """A line for each side of a steady row that has a result."""
    return [
        Line(report["name"], report["unit"], LABELS[side], _result(report, side), _ratio(report, side))
        for side in SIDES
        if report[side] is not None
    ]


def table(reports: Sequence[Report]) -> Table:
    """The rows for a terminal."""
    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in _HEADINGS:
        made.add_column(heading, no_wrap=True, justify="right" if "(" in heading else "left")
    for report in reports:
        for line in lines(report):
            made.add_row(*line)
    return made


def markdown(reports: Sequence[Report]) -> list[str]:
    """The rows as a table of Markdown."""
    head = [f"| {' | '.join(_HEADINGS)} |", "|---|---|---|--:|--:|"]
    return head + [f"| {' | '.join(line)} |" for report in reports for line in lines(report)]


def _result(report: Report, side: str) -> str:
    lowest, highest = report["range"][side]
    return f"{number(report[side])} ({number(lowest)}-{number(highest)})"


def _ratio(report: Report, side: str) -> str:
    spread = report["against"].get(side)
    return f"{spread['median']:.2f} ({spread['min']:.2f}-{spread['max']:.2f})" if spread else ""
