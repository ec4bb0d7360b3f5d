"""Runs all series, and writes `bench-scale.json` and `bench-scale.png`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import machine, options
from benchmarks.process import ChildFailed, Children
from benchmarks.scale import owner, picture
from benchmarks.scale.measures import SERIES, Points, Series, Told
from benchmarks.scale.steps import Pace


def main(arguments: list[str] | None = None) -> int:
    """Runs every series and returns the exit code."""
    chosen = _parse(arguments)
    console = Console()
    options.interrupt_on_sigterm()
    torch.set_num_threads(chosen.torch_threads)
    described = machine.describe(chosen.torch_threads)
    began = time.monotonic()
    try:
        series = _run(chosen, console)
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running", highlight=False)
        return 130
    except ChildFailed as failure:
        console.print(str(failure), style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    report = {
        "machine": described,
        "quick": chosen.quick,
        "seconds": round(time.monotonic() - began, 1),
        "memory": _memory(series),
        "series": series,
    }
    path = chosen.out / "bench-scale.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    picture.draw(chosen.out / "bench-scale.png", report)
    _show(report, console)
    console.print(f"{report['seconds']:.0f} s; {path}, {path.with_suffix('.png')}", highlight=False, soft_wrap=True)
    return 0


def _run(chosen: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    pace = Pace(seconds=0.2, most=20) if chosen.quick else Pace()
    wanted = [series for series in SERIES if chosen.series in series.name]
    found = []
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Children(chosen.out / "bench-scale-logs", chosen.torch_threads) as children,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("", total=sum(len(_values(series, chosen.quick)) for series in wanted))
        for series in wanted:
            progress.update(task, description=series.title)

            def told(text: str, series: Series = series) -> None:
                progress.console.print(f"{series.title} {text}", highlight=False, soft_wrap=True)
                progress.advance(task)

            points = _answer(series, _values(series, chosen.quick), pace, children, told)
            growth = round(points[-1]["ms"] / points[0]["ms"], 3)
            found.append({"name": series.name, "title": series.title, "growth": growth, "points": points})
    return found


def _answer(series: Series, values: tuple[int, ...], pace: Pace, children: Children, told: Told) -> Points:
    with owner.running(children) as running, asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(series.measure(running, values, pace, told))


def _memory(series: list[dict[str, Any]]) -> dict[str, float]:
    """KiB of the owner for each item, at the largest value of a series."""
    names = {"sessions_idle": "idle_session_kib", "contexts": "open_context_kib", "objects": "object_kib"}
    return {names[each["name"]]: each["points"][-1]["kib_each"] for each in series if each["name"] in names}


def _show(report: dict[str, Any], console: Console) -> None:
    table = Table(header_style="bold")
    table.add_column("what grows")
    table.add_column("from, to", justify="right")
    table.add_column("step from, to (ms)", justify="right")
    table.add_column("growth", justify="right")
    for series in report["series"]:
        first, last = series["points"][0], series["points"][-1]
        table.add_row(
            series["title"],
            f"{first['x']:,} - {last['x']:,}",
            f"{first['ms']:.3g} - {last['ms']:.3g}",
            f"{series['growth']:.2f}",
        )
    console.print(table)
    for series in report["series"]:
        if (each := series["points"][-1].get("bytes_each")) is not None:
            console.print(f"bytes of the owner per row of a table, with what its optimizer keeps: {each}")
    for name, kib in report["memory"].items():
        console.print(f"memory of the owner per {name.removesuffix('_kib').replace('_', ' ')}: {kib:,.0f} KiB")
    console.print(machine.line(report["machine"]), highlight=False, soft_wrap=True)


def _values(series: Series, quick: bool) -> tuple[int, ...]:
    return series.quick if quick else series.values


def _new_loop() -> asyncio.AbstractEventLoop:
    # The event loop of owners and of the blocking client.
    import uvloop

    return uvloop.new_event_loop()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = options.new_parser(
        "python -m benchmarks.scale", "Time of a step against what an owner holds and whom it serves."
    )
    parser.add_argument("--series", default="", help="only series whose names contain this")
    chosen = parser.parse_args(arguments)
    options.check(parser, chosen)
    if not any(chosen.series in series.name for series in SERIES):
        parser.error(f"no series contains {chosen.series!r}; there are {', '.join(each.name for each in SERIES)}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    return chosen


if __name__ == "__main__":
    sys.exit(main())
