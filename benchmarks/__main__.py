"""Measures the rows, shows them, and writes `bench.json` and `bench.png`."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console

from benchmarks import figures, machine, picture, report
from benchmarks.fleet import LOCALS, SIDES, Fleet
from benchmarks.harness import Settings, measure
from benchmarks.process import ChildFailed, Children
from benchmarks.report import Report
from benchmarks.rows import Row, choose
from benchmarks.sizes import FULL, QUICK
from benchmarks.table import Display, display, remarks, table

ROUNDS = 9


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmarks; returns 1 if a result was wrong or a process failed, whatever the ratios are."""
    options = _parse(arguments)
    console = Console()
    if options.readme:
        figures.rewrite(options.out / "bench.json")
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    described = machine.describe(options.torch_threads)
    try:
        rows = _run(options, console)
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running", highlight=False)
        return 130
    except ChildFailed as failure:
        console.print(str(failure), style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    whole: Report = {
        "machine": described,
        "quick": options.quick,
        "seconds": round(time.monotonic() - began, 1),
        "rows": rows,
    }
    report.write(options.out / "bench.json", whole)
    picture.draw(options.out / "bench.png", whole)
    _show(whole, options.out, console)
    return 1 if any(row["errors"] for row in rows) else 0


def _run(options: argparse.Namespace, console: Console) -> list[Report]:
    rows: list[Row] = options.rows
    settings = Settings(options.rounds, 0.1 if options.quick else 1.0)
    reports: list[Report] = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        Children(options.out / "bench-logs", options.torch_threads) as children,
        display(console, len(rows), settings.rounds) as shown,
    ):
        for shape, group in groupby(rows, key=lambda row: row.shape):
            members = list(group)
            sides = [side for side in SIDES if side not in LOCALS or any(row.local for row in members)]
            sizes = QUICK if options.quick else FULL
            fleets = [Fleet(side, shape, sizes, children, Path(scratch)) for side in sides]
            shown.say(f"starting {_count(shape.owners, 'owner')} and {_count(shape.trainers, 'trainer')} of each side")
            _start(fleets)
            for row in members:
                broken = [fleet for fleet in fleets if fleet.broken]
                children.end([child for fleet in broken for child in fleet.leave()])
                _start(broken)
                reports.append(_measure(row, fleets, settings, Path(scratch), shown))
            children.end([child for fleet in fleets for child in fleet.leave()])
    return reports


def _measure(row: Row, fleets: Sequence[Fleet], settings: Settings, scratch: Path, shown: Display) -> Report:
    shown.begin(row)
    entrants = measure(row, fleets, settings, scratch, lambda number: shown.advance(row, number))
    found = report.row_report(row, entrants)
    shown.finish(found)
    return found


def _start(fleets: Sequence[Fleet]) -> None:
    for fleet in fleets:
        fleet.start()
    for fleet in fleets:
        fleet.wait()


def _show(whole: Report, out: Path, console: Console) -> None:
    # A pipe has no width; its output is read in files.
    wide = console if console.is_terminal else Console(width=200)
    wide.print(table(whole["rows"], wide.width))
    for row in whole["rows"]:
        for remark in remarks(row):
            wide.print(remark, soft_wrap=True)
    console.print(machine.line(whole["machine"]), highlight=False, soft_wrap=True)
    console.print(
        "Medians over rounds; in brackets the quarters of the ratio within a round; a speedup above 1: we are faster.",
        highlight=False,
        soft_wrap=True,
    )
    if whole["quick"]:
        console.print("[yellow]--quick: small sizes and short turns; these figures mean nothing[/]")
    console.print(
        f"{whole['seconds']:.0f} s; {out / 'bench.json'}, {out / 'bench.png'}", highlight=False, soft_wrap=True
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="The same work through torch.distributed.rpc and through this project, in turn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rows", default="", help="only rows whose names contain this (or these, with commas)")
    parser.add_argument("--rounds", type=int, help=f"turns of each side per row ({ROUNDS}, or 2 with --quick)")
    parser.add_argument("--quick", action="store_true", help="small and short, to see whether it works")
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory for figures, picture and logs")
    parser.add_argument("--torch-threads", type=int, default=1, help="OMP_NUM_THREADS of every process")
    parser.add_argument("--readme", action="store_true", help="measure nothing; put out/bench.json into the README")
    options = parser.parse_args(arguments)
    try:
        options.rows = choose([word.strip() for word in options.rows.split(",") if word.strip()])
    except ValueError as error:
        parser.error(str(error))
    options.rounds = options.rounds or (2 if options.quick else ROUNDS)
    if options.rounds < 1 or options.torch_threads < 1:
        parser.error("--rounds and --torch-threads must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
