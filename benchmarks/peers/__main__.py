"""Measures the rows against other libraries, shows them, and writes `peers.json`."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks import machine
from benchmarks.fleet import LOCAL, OURS, OURS_TCP, Fleet
from benchmarks.harness import Settings, measure
from benchmarks.peers import report
from benchmarks.peers.environments import Environment, NotInstalled, prepare
from benchmarks.peers.fleet import MODULES, PeerFleet
from benchmarks.peers.report import Report
from benchmarks.process import ChildFailed, Children
from benchmarks.report import write
from benchmarks.rows import PEERS, Row, Shape, choose, row_named
from benchmarks.sizes import FULL, QUICK

ROUNDS: Final = 5

ROWS: Final = (
    *(row_named(name) for name in ("echo_4B", "echo_64KiB", "echo_1MiB", "echo_16MiB", "emb_forward", "emb_step")),
    *PEERS,
    *(row_named(name) for name in ("convnet_step", "trainers_4")),
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the comparison; returns 1 if a side's result was wrong or its process failed, whatever the ratios are."""
    options = _parse(arguments)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if options.readme:
        report.rewrite(options.out / "peers.json")
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    described = machine.describe(options.torch_threads)
    try:
        environments, missing = _prepare(options.peers, console)
        began = time.monotonic()
        rows = _run(options, environments, missing, console)
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    whole: Report = {
        "machine": described,
        "quick": options.quick,
        "seconds": round(time.monotonic() - began, 1),
        "rounds": options.rounds,
        "versions": {each.peer: each.version for each in environments},
        "missing": missing,
        "rows": rows,
    }
    write(options.out / "peers.json", whole)
    wide = console if console.is_terminal else Console(width=200)
    wide.print(report.table(whole))
    for remark in report.remarks(whole):
        console.print(remark)
    console.print(f"{whole['seconds']:.0f} s; {options.out / 'peers.json'}")
    return 1 if any(row["errors"] for row in rows) else 0


def _prepare(peers: Sequence[str], console: Console) -> tuple[list[Environment], dict[str, str]]:
    """The environments that could be made, and the reasons why others could not."""
    environments, missing = [], {}
    for peer in peers:
        try:
            environments.append(prepare(peer, console.print))
        except NotInstalled as reason:
            missing[peer] = f"not installed: {reason}"
            console.print(f"{peer} is not installed: {reason}")
    return environments, missing


def _run(
    options: argparse.Namespace, environments: Sequence[Environment], missing: dict[str, str], console: Console
) -> list[Report]:
    rows: list[Row] = options.rows
    settings = Settings(options.rounds, 0.1 if options.quick else 1.0)
    reports: list[Report] = []
    with (
        tempfile.TemporaryDirectory(prefix="peers-") as scratch,
        Children(options.out / "peers-logs", options.torch_threads) as children,
    ):
        for shape, group in groupby(rows, key=lambda row: row.shape):
            console.print(f"starting {shape.trainers} trainer{'s' * (shape.trainers > 1)} of each side")
            fleets = _fleets(options, shape, environments, children, Path(scratch))
            _start(fleets, missing, console)
            fleets, lost = [each for each in fleets if not each.broken], [each for each in fleets if each.broken]
            children.end([child for fleet in lost for child in fleet.leave()])
            for row in group:
                entrants = measure(row, fleets, settings, Path(scratch), lambda _: None)
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
    options: argparse.Namespace, shape: Shape, environments: Sequence[Environment], children: Children, scratch: Path
) -> list[Fleet]:
    sizes = QUICK if options.quick else FULL
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


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="The same work through other libraries and through this project, in turn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rows", default="", help="only rows whose names contain this (or these, with commas)")
    parser.add_argument("--peers", default=",".join(MODULES), help="only these peers")
    parser.add_argument("--rounds", type=int, help=f"turns of each side per row ({ROUNDS}, or 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="small and short, to see whether it works")
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory for results and logs")
    parser.add_argument("--torch-threads", type=int, default=1, help="OMP_NUM_THREADS of every process")
    parser.add_argument("--readme", action="store_true", help="measure nothing; put out/peers.json into the README")
    options = parser.parse_args(arguments)
    options.peers = [peer.strip() for peer in options.peers.split(",") if peer.strip()]
    if unknown := set(options.peers) - MODULES.keys():
        parser.error(f"there is no peer {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    try:
        options.rows = choose([word.strip() for word in options.rows.split(",") if word.strip()], ROWS)
    except ValueError as error:
        parser.error(str(error))
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    if options.rounds < 1 or options.torch_threads < 1:
        parser.error("--rounds and --torch-threads must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
