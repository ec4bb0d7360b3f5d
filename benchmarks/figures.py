"""Writes the results into the README of this folder, between two markers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import durable, encrypted, machine, steady
from benchmarks.fleet import GLOO, LOCAL, LOCAL_PAUSED, OURS, OURS_TCP, TORCH, TORCH_TCP
from benchmarks.report import AT_MOST, Report

README: Final = Path(__file__).with_name("README.md")
BEGIN: Final = "<!-- figures: begin (python -m benchmarks --readme) -->"
END: Final = "<!-- figures: end -->"

PARTS: Final = {
    "replica": "replicas",
    "table": "tables",
    "steady": "steady rows",
    "step_durable": "durable rows",
    "tls": "TLS",
}
"""What rows that are measured apart from the others are called, by how their names begin."""


def rewrite(source: Path, readme: Path = README) -> None:
    """Replaces the block between the markers by the figures in `source`.

    A run of the rows of replicas, tables or steady rows alone has a block of its own, because it says when it was
    measured.

    Raises:
        OSError: A file cannot be read.
        ValueError: The markers are not there.
    """
    report = json.loads(source.read_text())
    names = [row["name"] for row in report["rows"]]
    part = next((each for each in PARTS if names and all(name.startswith(each) for name in names)), None)
    begin, end = (BEGIN, END) if part is None else markers(part)
    replace(readme, begin, end, block(report))


def markers(part: str) -> tuple[str, str]:
    """The markers of the rows whose names begin so, which are measured apart from the others."""
    of = PARTS[part]
    return (
        f"<!-- figures of {of}: begin (python -m benchmarks --rows {part}, then --readme) -->",
        f"<!-- figures of {of}: end -->",
    )


def replace(readme: Path, begin: str, end: str, text: str) -> None:
    """Replaces what stands between two markers in a file; raises what `rewrite` raises."""
    before, first, rest = readme.read_text().partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"{readme} has no block between {begin!r} and {end!r}")
    readme.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


def block(report: Report) -> str:
    """The results as Markdown."""
    rows, steady_rows = steady.unsteady(report["rows"]), steady.steady(report["rows"])
    lines = [
        f"Measured on {machine.line(report['machine'])}; in {report['seconds']:.0f} s"
        + (" with `--quick`: these figures mean nothing." if report["quick"] else "."),
        "",
    ]
    durable_rows = durable.durable(report["rows"])
    tls_rows = encrypted.encrypted(report["rows"])
    lines += _table(rows) if rows or not (steady_rows or durable_rows or tls_rows) else []
    lines += ["", *steady.markdown(steady_rows)] if steady_rows else []
    lines += ["", *durable.markdown(durable_rows), "", durable.flushes(report)] if durable_rows else []
    if tls_rows:
        lines += ["", *encrypted.markdown(tls_rows), "", encrypted.ciphers(report), "", encrypted.access(report)]
    lines += ["", *_remarks(report)]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: Sequence[Report]) -> list[str]:
    lines = [
        "| row | unit | ours | torch rpc | speedup | ours, TCP | torch rpc, TCP | speedup, TCP | local "
        "| local, pauses | ours over local with pauses |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [row["name"], row["unit"], _number(row[OURS]), _torch(row), _ratio(row, "speedup")]
        cells += [_number(row[OURS_TCP]), _number(row[TORCH_TCP]), _ratio(row, "speedup_tcp"), _number(row[LOCAL])]
        cells += [_number(row[LOCAL_PAUSED]), _ratio(row, "over_paused") if "over_paused" in row else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _remarks(report: Report) -> list[str]:
    said = []
    for row in report["rows"]:
        if "over_one_owner" in row["target"]:
            said.append(f"- {row['name']}: {_ratio(row, 'over_one_owner')} times the steps of one owner.")
        if "over_baseline" in row["target"]:
            said.append(
                f"- {row['name']}: {_ratio(row, 'over_baseline')} times the time of the same work in its baseline."
            )
        said += [f"- {row['name']}, {column}: {lost}." for column, lost in row["lost"].items()]
        said += [f"- {row['name']}, {column}: **{error}**" for column, error in row["errors"].items()]
    return said


def _ratio(row: Report, name: str) -> str:
    figure, wanted, spread = row[name], row["target"].get(name), row["spread"][name]
    if figure is None:
        return "none"
    text = f"{figure:.2f} ({spread['q1']:.2f}-{spread['q3']:.2f})"
    if wanted is None:
        return text
    sign = "at most" if name in AT_MOST else "at least"
    reached = "reached" if row["reached"][name] else "**not reached**"
    return f"{text}, {reached}: {sign} {wanted:g}"


def _torch(row: Report) -> str:
    return _number(row[TORCH]) if row.get(GLOO) is None else f"gloo: {_number(row[GLOO])}"


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
