"""The owner, its trainers and an export, as processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.process import Child, Children

_PATIENCE = 300.0


class Running:
    """An owner with a table of so many rows, `items`."""

    def __init__(self, children: Children, rows: int) -> None:
        self._children = children
        self._rows = rows
        owner = children.start(f"serving-owner-{rows}", "ps_service", "serve", "--listen", "127.0.0.1:0", listens=False)
        self.address = owner.line(_PATIENCE).split()[-1]
        self.trainers: list[Child] = []
        self.started = [owner]

    def train(self, count: int, pause: float = 0.0) -> None:
        """Starts trainers, which go on."""
        for seed in range(count):
            self.trainers.append(
                self._children.start(
                    f"serving-trainer-{self._rows}-{seed}", "benchmarks.serving.work", "--rows", str(self._rows),
                    "--seed", str(seed), "--pause", str(pause), "--owner", self.address,
                )
            )  # fmt: skip
        self.started += self.trainers
        for each in self.trainers:
            assert each.line(_PATIENCE) == "ready"

    def steps_per_second(self) -> float:
        """Of all trainers together, since this was asked last."""
        for each in self.trainers:
            each.send()
        told = [json.loads(each.line(_PATIENCE)) for each in self.trainers]
        return sum(count / seconds for count, seconds in told)

    def export(self, folder: str, every: float) -> None:
        """Starts an export that follows."""
        following = self._children.start(
            f"serving-export-{self._rows}", "ps_service", "export", folder, self.address, "--follow", "--every",
            str(every), "--quiet", listens=False,
        )  # fmt: skip
        self.started.append(following)


@contextmanager
def running(children: Children, rows: int) -> Iterator[Running]:
    """Such an owner, for a block that ends all that it has started."""
    made = Running(children, rows)
    try:
        yield made
    finally:
        children.end(made.started[::-1])
