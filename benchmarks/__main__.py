"""Measures the rows, shows them, and writes `bench.json`, `bench.png` and `bench-steady.png`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks import (
    access_check,
    ciphers,
    durable,
    encrypted,
    figures,
    flush,
    machine,
    options,
    picture,
    report,
    steady,
    steady_picture,
)
from benchmarks.fleet import SIDES, Fleet, certificates, takes_part
from benchmarks.harness import QUICK_PACE, Settings, measure
from benchmarks.options import Rounds
from benchmarks.process import ChildFailed, Children
from benchmarks.report import Report
from benchmarks.rows import Row
from benchmarks.sizes import FULL, QUICK
from benchmarks.table import Display, display, remarks, table

ROUNDS: Final = Rounds(normal=9, quick=2)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmarks; returns 1 if a result was wrong or a process failed, whatever the ratios are."""
    chosen = _parse(arguments)
    console = Console()
    if chosen.readme:
        figures.rewrite(chosen.out / "bench.json")
        return 0
    options.interrupt_on_sigterm()
    began = time.monotonic()
    described = machine.describe(chosen.torch_threads)
    try:
        rows, beside = _run(chosen, console)
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running", highlight=False)
        return 130
    except ChildFailed as failure:
        console.print(str(failure), style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    whole: Report = {
        "machine": described,
        "quick": chosen.quick,
        "seconds": round(time.monotonic() - began, 1),
        **beside,
        "rows": rows,
    }
    report.write(chosen.out / "bench.json", whole)
    if others := steady.unsteady(rows):
        picture.draw(chosen.out / "bench.png", whole | {"rows": others})
    if steady_rows := steady.steady(rows):
        steady_picture.draw(chosen.out / "bench-steady.png", steady_rows)
    _show(whole, chosen.out, console)
    return 1 if any(row["errors"] for row in rows) else 0


def _run(chosen: argparse.Namespace, console: Console) -> tuple[list[Report], Report]:
    rows: list[Row] = chosen.rows
    settings = Settings(chosen.rounds, QUICK_PACE if chosen.quick else 1.0)
    reports: list[Report] = []
    beside: Report = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as scratch,
        Children(chosen.out / "bench-logs", chosen.torch_threads) as children,
        display(console, len(rows), settings.rounds_of) as shown,
    ):
        for shape, group in groupby(rows, key=lambda row: row.shape):
            members = list(group)
            sides = [side for side in SIDES if any(takes_part(side, row) for row in members)]
            sizes = QUICK if chosen.quick else FULL
            fleets = [Fleet(side, shape, sizes, children, Path(scratch)) for side in sides]
            shown.say(f"starting {_count(shape.owners, 'owner')} and {_count(shape.trainers, 'trainer')} of each side")
            _start(fleets)
            if shape.durable:
                beside["flush_ms"] = flush.measure(Path(scratch), times=1 if chosen.quick else flush.TIMES)
            if shape.tls:
                times = 1 if chosen.quick else ciphers.TIMES
                beside["cipher_gb_s"] = ciphers.measure(certificates(Path(scratch)), times)
                times = 1 if chosen.quick else access_check.TIMES
                beside["access_us"] = access_check.measure(Path(scratch), times)
            for row in members:
                broken = [fleet for fleet in fleets if fleet.broken]
                children.end([child for fleet in broken for child in fleet.leave()])
                _start(broken)
                reports.append(_measure(row, fleets, settings, Path(scratch), shown))
            children.end([child for fleet in fleets for child in fleet.leave()])
    return reports, beside


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
    if others := steady.unsteady(whole["rows"]):
        wide.print(table(others, wide.width))
    if steady_rows := steady.steady(whole["rows"]):
        wide.print(steady.table(steady_rows))
    if durable_rows := durable.durable(whole["rows"]):
        wide.print(durable.table(durable_rows))
        wide.print(durable.flushes(whole), soft_wrap=True)
    if tls_rows := encrypted.encrypted(whole["rows"]):
        wide.print(encrypted.table(tls_rows))
        wide.print(encrypted.ciphers(whole), soft_wrap=True)
        wide.print(encrypted.access(whole), soft_wrap=True)
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


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = options.new_parser(
        "python -m benchmarks", "The same work through torch.distributed.rpc and through this project, in turn."
    )
    options.add_rows(parser, ROUNDS, "bench.json")
    chosen = parser.parse_args(arguments)
    options.check_rows(parser, chosen, ROUNDS)
    return chosen


if __name__ == "__main__":
    sys.exit(main())
