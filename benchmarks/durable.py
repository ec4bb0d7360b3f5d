"""Shows the rows of durability: what a step costs with each `--durability`, beside the time of a flush."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich import box
from rich.table import Table

from benchmarks.fleet import DURABLE, DURABLE_OFF
from benchmarks.report import Report
from benchmarks.table import number

ROW: Final = "step_durable"
"""How the names of these rows begin."""

_HEADINGS: Final = ("row", "work", "unit", "median (range)", "time over that of off (range)")


class Line(NamedTuple):
    """One side in a row, as text.

    Attributes:
        row: `step_durable_` and what the side promises.
        work: Of the row.
        unit: Its unit.
        result: Median and range of its turns.
        ratio: Median and range of its time divided by that without a log, within a round; empty for that.
    """

    row: str
    work: str
    unit: str
    result: str
    ratio: str


def is_durable(report: Report) -> bool:
    """Whether the report is of such a row."""
    return str(report["name"]).startswith(ROW)


def durable(reports: Sequence[Report]) -> list[Report]:
    """The reports that are of these rows."""
    return [report for report in reports if is_durable(report)]


def lines(report: Report) -> list[Line]:
    """A line for each side that has a result."""
    return [
        Line(
            f"{ROW}_{side.removeprefix('durable_')}",
            report["work"],
            report["unit"],
            _result(report, side),
            _ratio(report, side),
        )
        for side in DURABLE
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


def flushes(whole: Report) -> str:
    """What a flush takes on the disk of the data directories."""
    told = ", ".join(f"{size} in {number(milliseconds)} ms" for size, milliseconds in whole["flush_ms"].items())
    return f"Written into a file that is used again, and flushed (fdatasync), on the same disk: {told}; medians."


def _result(report: Report, side: str) -> str:
    lowest, highest = report["range"][side]
    return f"{number(report[side])} ({number(lowest)}-{number(highest)})"


def _ratio(report: Report, side: str) -> str:
    spread = report["against"].get(side)
    if side == DURABLE_OFF or spread is None:
        return ""
    return f"{spread['median']:.2f} ({spread['min']:.2f}-{spread['max']:.2f})"
