"""The figures and the picture of a training whose machine is lost."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_RED: Final = "#d1495b"
_BLUE: Final = "#2667b5"
_GREEN: Final = "#2a9d6f"


@dataclass(frozen=True)
class Report:
    """What happened, in seconds since the first step.

    Attributes:
        steps: When each step of all trainers was acknowledged.
        auc: Moments, and the AUC of the held-out clicks then.
        cut: When the machine lost its power.
        known: When Ray knew.
        back: When its owner served on another machine.
        moved: The addresses of that owner before and after.
        applied: Steps that each owner has applied to its rows.
    """

    steps: list[float]
    auc: list[tuple[float, float]]
    cut: float
    known: float
    back: float
    moved: tuple[str, str]
    applied: dict[str, int]

    @property
    def pause(self) -> float:
        """The longest time between two steps."""
        return max(after - before for before, after in pairwise(self.steps))

    @property
    def speeds(self) -> tuple[float, float]:
        """Steps per second before the cut, and after the owner was back."""
        before = [each for each in self.steps if each < self.cut]
        after = [each for each in self.steps if each > self.back]
        return tuple((len(each) - 1) / max(each[-1] - each[0], 1e-9) for each in (before, after))  # type: ignore[return-value]

    def write(self, path: Path) -> None:
        """Writes the figures as JSON."""
        path.write_text(json.dumps(asdict(self) | {"pause": self.pause, "speeds": self.speeds}, indent=2) + "\n")


def draw(report: Report, path: Path) -> None:
    """The AUC and the steps per second over time, with the loss of the machine."""
    figure = Figure(figsize=(11, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(*zip(*report.auc, strict=True), color=_BLUE, marker="o", markersize=3)
    above.set(ylabel="AUC of held-out clicks", title="A recommender on Ray: one of three machines loses its power")
    _speed(below, report.steps)
    below.set(ylabel="steps per second", xlim=(0, None), ylim=(0, None))
    for axes in (above, below):
        axes.set_xlabel("seconds since the first step")
        axes.axvspan(report.cut, report.back, color=_RED, alpha=0.13, linewidth=0)
        axes.axvline(report.cut, color=_RED, label="the machine is lost")
        axes.axvline(report.known, color=_RED, linestyle=":", label="Ray knows it")
        axes.axvline(report.back, color=_GREEN, label="its owner serves on another machine")
        axes.grid(alpha=0.3)
    above.legend(loc="lower right", fontsize="small")
    figure.savefig(path, dpi=110)


def _speed(axes: Axes, steps: list[float]) -> None:
    counts, edges = np.histogram(steps, np.arange(0.0, steps[-1] + 1.0))
    axes.stairs(counts, edges, color=_BLUE, fill=True, alpha=0.6)
