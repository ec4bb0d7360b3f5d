"""Shows the rows of TLS: what encryption costs on the direct port and on gRPC, beside the speed of OpenSSL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich import box
from rich.table import Table

from benchmarks.fleet import TLS
from benchmarks.report import Report
from benchmarks.table import number

_HEADINGS: Final = ("row", "work", "unit", "plain", "TLS", "time of TLS over plain (quarters)")


class Line(NamedTuple):
    """One transport in a row, as text."""

    row: str
    work: str
    unit: str
    plain: str
    tls: str
    ratio: str


def encrypted(reports: Sequence[Report]) -> list[Report]:
    """The reports that are of these rows."""
    return [report for report in reports if "over_plain" in report]


def lines(report: Report) -> list[Line]:
    """A line for each transport that has results."""
    found = []
    for ratio, (over, under) in TLS.items():
        if report[ratio] is not None:
            name = f"{report['name']}, {over.removeprefix('tls_')}"
            sides = number(report[under]), number(report[over])
            found.append(Line(name, report["work"], report["unit"], *sides, _ratio(report, ratio)))
    return found


def table(reports: Sequence[Report]) -> Table:
    """The rows for a terminal."""
    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in _HEADINGS:
        made.add_column(heading, no_wrap=True, justify="left" if heading in _HEADINGS[:3] else "right")
    for report in reports:
        for line in lines(report):
            made.add_row(*line)
    return made


def markdown(reports: Sequence[Report]) -> list[str]:
    """The rows as a table of Markdown."""
    head = [f"| {' | '.join(_HEADINGS)} |", "|---|---|---|--:|--:|--:|"]
    return head + [f"| {' | '.join(line)} |" for report in reports for line in lines(report)]


def ciphers(whole: Report) -> str:
    """What OpenSSL does alone."""
    told = ", ".join(f"{what} {number(speed)} GB/s" for what, speed in whole["cipher_gb_s"].items())
    return f"OpenSSL alone, in memory, on one core, with 16 MiB in pieces of 64 KiB: {told}; medians."


def access(whole: Report) -> str:
    """What an owner with tokens adds to a request."""
    us = whole["access_us"]
    return (
        f"The check of the role and the pass of a request: {number(us['with_tokens'])} us with tokens (at most 3), "
        f"{number(us['without'])} us without; to know the bearer of a token, once for each stream: "
        f"{number(us['identifying'])} us; medians on one core."
    )


def _ratio(report: Report, name: str) -> str:
    spread, wanted = report["spread"][name], report["target"].get(name)
    text = f"{report[name]:.2f} ({spread['q1']:.2f}-{spread['q3']:.2f})"
    if wanted is None:
        return text
    return f"{text}, {'reached' if report['reached'][name] else 'not reached'}: at most {wanted:g}"
