"""`python -m benchmarks.delays`: passes over a link with 1 and 10 ms of delay and 1 Gbit/s.

In each round, every kind of link has a turn: first one without delay and limit, which shows what the processors allow.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.delays import namespace
from benchmarks.process import Child, Children

RATE: Final = 1e9 / 8
"""Bytes per second in each direction."""

FREE: Final = (0.0, 0.0)
LINKS: Final = (FREE, (0.0, RATE), (0.001, RATE), (0.010, RATE))
"""Delay in each direction in seconds, and rate; a rate of 0 is no limit."""

WORKS: Final = ("scale", "recommender", "prefetch")
PREFETCHED: Final = (0, 1, 2)
"""How many batches are looked up in advance."""

TARGET: Final = 0.8
"""Part of what link and processors allow that passes in flight have to reach."""

RAW_SECONDS: Final = 1.0
"""The longest that a plain socket is measured."""
ANSWER_SECONDS: Final = 120.0

Turn = dict[str, float]


class Measured:
    """An owner and a trainer in two namespaces, and the link between them.

    Args:
        children: Starts the processes.
        path: The link's socket.
        seconds: Time of each measurement.
    """

    def __init__(self, children: Children, path: str, seconds: float) -> None:
        self._seconds = seconds
        self._link = children.start("link", "benchmarks.delays.link", path)
        self._link.line(ANSWER_SECONDS)
        owner = children.start("owner", "benchmarks.delays.host", "owner", path)
        self._trainer = children.start("trainer", "benchmarks.delays.host", "trainer", path)
        served = owner.receive(ANSWER_SECONDS)
        self._address, self._raw_port = served["address"], served["raw"]
        self._trainer.receive(ANSWER_SECONDS)

    def shape(self, delay: float, rate: float) -> Turn:
        """Sets delay and rate; returns the bytes per second of a plain socket, and its time there and back."""
        self.link(delay, rate)
        return _ask(self._trainer, do="raw", port=self._raw_port, seconds=min(RAW_SECONDS, self._seconds))

    def link(self, delay: float, rate: float) -> None:
        """Sets delay and rate."""
        _ask(self._link, delay=delay, rate=rate)

    def steps(self, depth: int) -> float:
        """Steps per second of one loop that looks up `depth` batches in advance."""
        asked = {"address": self._address, "depth": depth, "seconds": self._seconds}
        return float(_ask(self._trainer, do="steps", **asked)["per_second"])

    def passes(self, work: str, depth: int) -> Turn:
        """Passes per second, and the bytes of a pass in the busier direction."""
        before = _ask(self._link)
        asked = {"address": self._address, "work": work, "depth": depth, "seconds": self._seconds}
        found = _ask(self._trainer, do="passes", **asked)
        after = _ask(self._link)
        busier = max(after[way] - before[way] for way in ("up", "down"))
        return {"per_second": found["per_second"], "bytes": busier / found["passes"]}


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints; returns 0 also where the machine cannot have such a link, and says so."""
    options = _parse(arguments)
    console = Console(width=150, highlight=False)
    if reason := namespace.missing():
        console.print(f"skipped: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="delays-") as scratch, Children(options.out / "delays-logs", 1) as children:
        measured = Measured(children, str(Path(scratch) / "link"), options.seconds)
        for work in options.works.split(","):
            console.print((_prefetched if work == "prefetch" else _table)(work, measured, options))
    return 0


def _table(work: str, measured: Measured, options: argparse.Namespace) -> Table:
    turns: defaultdict[tuple[float, float], list[Turn]] = defaultdict(list)
    for _ in range(options.rounds):
        free = 0.0
        for link in LINKS:
            raw = measured.shape(*link)
            one, many = (measured.passes(work, depth) for depth in (1, options.depth))
            if link == FREE:
                free = max(one["per_second"], many["per_second"])
            allowed = min(raw["rate"] / many["bytes"], free)
            turn = {"one": one["per_second"], "many": many["per_second"], "link": raw["rate"] / many["bytes"]}
            turns[link].append({**raw, **turn, "free": free, "reached": many["per_second"] / allowed})
    table = Table(
        "delay", "rate", "plain socket", "1 in flight", f"{options.depth} in flight", "link allows", "processors allow",
        "reached", title=f"{work}: passes per second",
    )  # fmt: skip
    for (delay, rate), found in turns.items():
        middle = {key: median(turn[key] for turn in found) for key in found[0]}
        table.add_row(
            f"{delay * 1000:g} ms",
            f"{rate * 8 / 1e9:g} Gbit/s" if rate else "no limit",
            f"{middle['rate'] * 8 / 1e9:.2f} Gbit/s, {middle['trip'] * 1000:.2f} ms",
            *(f"{middle[key]:.1f}" for key in ("one", "many", "link", "free")),
            "" if not rate else f"{middle['reached']:.2f} {_verdict(middle['reached'])}",
        )
    return table


def _prefetched(work: str, measured: Measured, options: argparse.Namespace) -> Table:
    """Steps with look-ups in advance, and how many times as many they are as without, in the same round."""
    turns: defaultdict[float, list[list[float]]] = defaultdict(list)
    for _ in range(options.rounds):
        for delay, rate in LINKS[1:]:
            measured.link(delay, rate)
            turns[delay].append([measured.steps(depth) for depth in PREFETCHED])
    table = Table("delay", *(f"depth {depth}" for depth in PREFETCHED), title=f"{work}: steps per second")
    for delay, found in turns.items():
        cells = [f"{median(turn[0] for turn in found):.1f}"]
        for place in range(1, len(PREFETCHED)):
            gain = median(turn[place] / turn[0] for turn in found)
            cells.append(f"{median(turn[place] for turn in found):.1f} ({gain:.2f} times)")
        table.add_row(f"{delay * 1000:g} ms", *cells)
    return table


def _verdict(reached: float) -> str:
    return f"(target {TARGET:g}: {'reached' if reached >= TARGET else 'not reached'})"


def _ask(child: Child, **message: Any) -> dict[str, Any]:
    child.send(**message)
    return child.receive(ANSWER_SECONDS)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.delays",
        description="Throughput of passes over a link with delay and limited rate.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each kind of link")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each measurement")
    parser.add_argument("--depth", type=int, default=16, help="passes in flight")
    parser.add_argument("--works", default=",".join(WORKS), help="only this work")
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory for logs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
