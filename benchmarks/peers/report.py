"""The table of the peers: each side's time, and how many times faster we are."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.table import Table

from benchmarks import figures, machine
from benchmarks.fleet import LOCAL, OURS, OURS_TCP
from benchmarks.harness import Entrant
from benchmarks.peers.fleet import PEERS
from benchmarks.rows import Row

Report = dict[str, Any]

BEGIN: Final = "<!-- peers: begin (python -m benchmarks.peers --readme) -->"
END: Final = "<!-- peers: end -->"

_NAMES: Final = {
    OURS: "ours",
    OURS_TCP: "ours, TCP",
    **{name: peer.title for name, peer in PEERS.items()},
    LOCAL: "local",
}


def row_report(row: Row, entrants: Sequence[Entrant]) -> Report:
    """The report of one row.

    `faster` has, for each peer, the medians over rounds of the ratio within a round, for `ours` and `ours_tcp`; above 1
    we are faster. A side with an error has no result and no ratio.
    """
    turns = {each.column: [turn for turn in each.turns if turn is not None] for each in entrants if not each.error}
    return {
        "name": row.name,
        "unit": row.unit,
        "results": {side: _rounded(row.shown(statistics.median(times))) for side, times in turns.items()},
        "faster": {
            peer: {ours: _ratio(turns[peer], turns[ours]) for ours in (OURS, OURS_TCP) if ours in turns}
            for peer in PEERS
            if peer in turns
        },
        "rounds": max(len(each.turns) for each in entrants),
        "turns": {side: [_rounded(row.shown(turn)) for turn in times] for side, times in turns.items()},
        "errors": {each.column: each.error for each in entrants if each.error},
    }


def table(report: Report) -> Table:
    """The report for a terminal."""
    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for head in _head(_asked(report)):
        made.add_column(head, justify="left" if head in ("row", "unit") else "right")
    for row in report["rows"]:
        made.add_row(*_cells(row, report))
    return made


def remarks(report: Report) -> list[str]:
    """Why results are missing."""
    said = [f"{_NAMES[peer]}: {reason}" for peer, reason in report["missing"].items()]
    for row in report["rows"]:
        said += [f"{row['name']}, {_NAMES[side]}: {error}" for side, error in row["errors"].items()]
    return said


def block(report: Report) -> str:
    """The report as Markdown."""
    head = _head(_asked(report))
    versions = ", ".join(filter(None, report["versions"].values()))
    lines = [
        f"Measured on {machine.line(report['machine'])}; {versions}; {report['rounds']} rounds in "
        f"{report['seconds']:.0f} s" + (" with `--quick`: these figures mean nothing." if report["quick"] else "."),
        "",
        f"| {' | '.join(head)} |",
        f"|{'|'.join('---' if name in ('row', 'unit') else '--:' for name in head)}|",
        *(f"| {' | '.join(_cells(row, report))} |" for row in report["rows"]),
        "",
        *(f"- {remark}" for remark in remarks(report)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def rewrite(source: Path, readme: Path = figures.README) -> None:
    """Puts the report in a file into the README, between its markers; raises what `figures.replace` raises."""
    figures.replace(readme, BEGIN, END, block(json.loads(source.read_text())))


def _asked(report: Report) -> list[str]:
    return [peer for peer in PEERS if peer in report["versions"] or peer in report["missing"]]


def _head(asked: Sequence[str]) -> list[str]:
    peers = [name for peer in asked for name in (_NAMES[peer], "ours / TCP faster")]
    return ["row", "unit", _NAMES[OURS], _NAMES[OURS_TCP], *peers, _NAMES[LOCAL]]


def _cells(row: Report, report: Report) -> list[str]:
    results = row["results"]
    cells = [row["name"], row["unit"], *(_figure(results.get(side)) for side in (OURS, OURS_TCP))]
    for peer in _asked(report):
        faster = row["faster"].get(peer, {})
        absent = (
            "missing" if peer in report["missing"] and peer not in results else "error" if peer in row["errors"] else ""
        )
        cells.append(absent or _figure(results.get(peer)))
        cells.append(" / ".join(f"{faster[ours]:.2f}" if ours in faster else "-" for ours in (OURS, OURS_TCP)))
    return [*cells, _figure(results.get(LOCAL))]


def _ratio(peer: Sequence[float], ours: Sequence[float]) -> float:
    return _rounded(statistics.median(a / b for a, b in zip(peer, ours, strict=True)))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
