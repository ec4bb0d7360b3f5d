"""Measures the rows against other libraries, shows them, and writes `peers.json`."""

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

from benchmarks import machine, options
from benchmarks.fleet import LOCAL, OURS, OURS_TCP, Fleet
from benchmarks.harness import QUICK_PACE, Settings, measure
from benchmarks.options import Rounds
from benchmarks.peers import report
from benchmarks.peers.environments import Environment, NotInstalled, prepare
from benchmarks.peers.fleet import PEERS, PeerFleet, takes_part
from benchmarks.peers.report import Report
from benchmarks.process import ChildFailed, Children
from benchmarks.report import write
from benchmarks.rows import Row, Shape, row_named
from benchmarks.sizes import FULL, QUICK

ROUNDS: Final = Rounds(normal=5, quick=1)

ROWS: Final = (
    *(row_named(name) for name in ("echo_4B", "echo_64KiB", "echo_1MiB", "echo_16MiB", "emb_forward", "emb_step")),
    *(row_named(name) for name in ("emb_step_whole", "emb_forward_zipf", "emb_step_zipf")),
    *(row_named(name) for name in ("convnet_step", "convnet_step_overlapped")),
    *(row_named(name) for name in ("linears_step", "linears_step_whole")),
    *(row_named(name) for name in ("small_recommender_whole", "trainers_4")),
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the comparison; returns 1 if a side's result was wrong or its process failed, whatever the ratios are."""
    chosen = _parse(arguments)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if chosen.readme:
        report.rewrite(chosen.out / "peers.json")
        return 0
    options.interrupt_on_sigterm()
    described = machine.describe(chosen.torch_threads)
    try:
        environments, missing = _prepare(chosen.peers, console)
        began = time.monotonic()
        rows = _run(chosen, environments, missing, console)
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    whole: Report = {
        "machine": described,
        "quick": chosen.quick,
        "seconds": round(time.monotonic() - began, 1),
        "rounds": chosen.rounds,
        "versions": {each.peer: each.version for each in environments},
        "missing": missing,
        "rows": rows,
    }
    write(chosen.out / "peers.json", whole)
    wide = console if console.is_terminal else Console(width=200)
    wide.print(report.table(whole))
    for remark in report.remarks(whole):
        console.print(remark)
    console.print(f"{whole['seconds']:.0f} s; {chosen.out / 'peers.json'}")
    return 1 if any(row["errors"] for row in rows) else 0


def _prepare(peers: Sequence[str], console: Console) -> tuple[list[Environment], dict[str, str]]:
    """The environments that could be made, and the reasons why others could not."""
    environments, missing = [], {}
    for peer in peers:
        try:
            environments.append(prepare(peer, console.print, PEERS[peer].environment))
        except NotInstalled as reason:
            missing[peer] = f"not installed: {reason}"
            console.print(f"{peer} is not installed: {reason}")
    return environments, missing


def _run(
    chosen: argparse.Namespace, environments: Sequence[Environment], missing: dict[str, str], console: Console
) -> list[Report]:
    rows: list[Row] = chosen.rows
    settings = Settings(chosen.rounds, QUICK_PACE if chosen.quick else 1.0)
    reports: list[Report] = []
    with (
        tempfile.TemporaryDirectory(prefix="peers-") as scratch,
        Children(chosen.out / "peers-logs", chosen.torch_threads) as children,
    ):
        for shape, group in groupby(rows, key=lambda row: row.shape):
            console.print(f"starting {shape.trainers} trainer{'s' * (shape.trainers > 1)} of each side")
            fleets = _fleets(chosen, shape, environments, children, Path(scratch))
            _start(fleets, missing, console)
            fleets, lost = [each for each in fleets if not each.broken], [each for each in fleets if each.broken]
            children.end([child for fleet in lost for child in fleet.leave()])
            for row in group:
                taking = [each for each in fleets if takes_part(each.side, row)]
                entrants = measure(row, taking, settings, Path(scratch), lambda _: None)
                reports.append(report.row_report(row, entrants))
                console.print(_line(reports[-1]))
                # A side that failed gets new processes for the next row.
                broken = [fleet for fleet in fleets if fleet.broken]
                children.end([child for fleet in broken for child in fleet.leave()])
                _start(broken, missing, console)
                fleets = [fleet for fleet in fleets if not fleet.broken]
            children.end([child for fleet in fleets for child in fleet.leave()])
    return reports


def _fleets(
    chosen: argparse.Namespace, shape: Shape, environments: Sequence[Environment], children: Children, scratch: Path
) -> list[Fleet]:
    sizes = QUICK if chosen.quick else FULL
    return [
        Fleet(OURS, shape, sizes, children, scratch),
        Fleet(OURS_TCP, shape, sizes, children, scratch),
        *(PeerFleet(each, shape, sizes, children, scratch) for each in environments),
        Fleet(LOCAL, shape, sizes, children, scratch),
    ]


def _start(fleets: Sequence[Fleet], missing: dict[str, str], console: Console) -> None:
    """Starts processes, and notes which sides did not start."""
    for fleet in fleets:
        fleet.start()
    for fleet in fleets:
        try:
            fleet.wait()
        except ChildFailed as failure:
            fleet.broken = True
            missing[fleet.side] = f"did not start: {failure}"
            console.print(f"{fleet.side} did not start: {failure}")


def _line(row: Report) -> str:
    found = ", ".join(f"{side} {result:g}" for side, result in row["results"].items())
    return f"{row['name']}: {found} {row['unit']}" + "".join(
        f"\n  {side}: {error}" for side, error in row["errors"].items()
    )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = options.new_parser(
        "python -m benchmarks.peers", "The same work through other libraries and through this project, in turn."
    )
    options.add_rows(parser, ROUNDS, "peers.json")
    parser.add_argument("--peers", default=",".join(PEERS), help="only these peers")
    chosen = parser.parse_args(arguments)
    chosen.peers = options.words(chosen.peers)
    if unknown := set(chosen.peers) - PEERS.keys():
        parser.error(f"there is no peer {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    options.check_rows(parser, chosen, ROUNDS, ROWS)
    return chosen


if __name__ == "__main__":
    sys.exit(main())
