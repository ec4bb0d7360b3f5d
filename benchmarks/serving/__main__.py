"""Measures what serving takes, shows it, and writes `bench-serving.json`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import machine, options
from benchmarks.process import ChildFailed, Children
from benchmarks.serving import following, look_ups, reads

EVERY = 0.5
"""Seconds between two versions of an export."""


def main(arguments: list[str] | None = None) -> int:
    """Runs all and returns the exit code."""
    parser = options.new_parser("python -m benchmarks.serving", __doc__ or "")
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000, 10_000_000], help="of followed tables")
    chosen = parser.parse_args(arguments)
    options.check(parser, chosen)
    console, began = Console(), time.monotonic()
    options.interrupt_on_sigterm()
    torch.set_num_threads(chosen.torch_threads)
    report: dict[str, Any] = {"machine": machine.describe(chosen.torch_threads), "quick": chosen.quick}
    try:
        with Children(chosen.out / "bench-serving-logs", chosen.torch_threads) as children:
            asyncio.run(_measure(children, chosen.rows, chosen.quick, report, console))
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running", highlight=False)
        return 130
    except ChildFailed as failure:
        console.print(str(failure), style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    report["seconds"] = round(time.monotonic() - began, 1)
    path = chosen.out / "bench-serving.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    console.print(f"{report['seconds']:.0f} s; {path}", highlight=False, soft_wrap=True)
    return 0


async def _measure(children: Children, sizes: list[int], quick: bool, report: dict[str, Any], console: Console) -> None:
    seconds, rounds, probes = (0.5, 1, 5) if quick else (4.0, 7, 60)
    told = await reads.measure(children, 100_000.0, rounds, seconds)
    report["reads"] = asdict(told)
    console.print(
        f"reads beside two trainers: {told.served:,.0f} of {told.offered:,.0f} rows/s, p50 {told.p50_ms:.1f} ms, "
        f"p99 {told.p99_ms:.1f} ms; the trainers take {told.slower:.2f} times as long",
        highlight=False,
    )
    report["following"] = []
    for rows in sizes:
        found = await following.measure(children, rows, EVERY, probes)
        report["following"].append(asdict(found))
        console.print(
            f"following {rows:,} rows, a version each {EVERY} s: p50 {found.p50_s:.2f} s, p99 {found.p99_s:.2f} s from "
            f"a step to the reader; {found.delta_bytes:,} bytes a version ({found.delta_rows:,} rows) of "
            f"{found.base_bytes:,}",
            highlight=False,
        )
    rows = 10_000 if quick else 1_000_000
    speeds = look_ups.measure(rows, 1 if quick else 5, 0.2 if quick else 1.0)
    report["look_ups"] = {"rows": rows, "thousands_a_second": speeds}
    table = Table("look-ups", "one id at a time", "256 at once", title=f"thousands of rows a second, {rows:,} rows")
    for name, each in speeds.items():
        table.add_row(name, f"{each['one']:,.0f}", f"{each['batch']:,.0f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
