"""The figures and the picture of a training."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from examples.recommender.training import Point

_SHOWN: Final = 5
"""Tables that have an area of their own."""


@dataclass(frozen=True)
class Report:
    """The results of one run, as in ``recommender.json``.

    Attributes:
        auc: Of the held-out clicks, after the last step.
        reference: That of the same training in one process with plain torch, and its course: (step, AUC).
        best: That of the probabilities which the clicks were drawn with; None for clicks from a file.
        batch_size: Clicks in a step.
        steps_per_second: Of all trainers together.
        points: The model on the way.
    """

    auc: float
    reference: list[tuple[int, float]]
    best: float | None
    batch_size: int
    steps_per_second: float
    points: list[Point]

    def write(self, path: Path) -> None:
        """Writes the figures as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def draw(report: Report, path: Path) -> None:
    """The AUC against the steps, and the rows of the tables."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [point.step for point in report.points]
    left.plot(steps, [point.auc for point in report.points], "o-", label="tables on owners")
    left.plot(*zip(*report.reference, strict=True), "x--", label="one process, torch.nn.Embedding")
    if report.best is not None:
        left.axhline(report.best, color="gray", linestyle=":", label="the generator's own probabilities")
    left.set(xlabel="steps of all trainers", ylabel="AUC of held-out clicks", xlim=(0, None))
    left.legend(loc="best")  # covers the fewest points

    rows = np.array([[0] * len(report.points[0].rows), *(point.rows for point in report.points)])
    order = rows[-1].argsort()[::-1]
    largest, others = order[:_SHOWN], order[_SHOWN:]
    labels = [*(f"feature {column}" for column in largest), f"the other {len(others)}"]
    right.stackplot([0, *steps], *rows[:, largest].T, rows[:, others].sum(1), labels=labels, alpha=0.8)
    right.set(xlabel="steps of all trainers", ylabel="rows of all tables", xlim=(0, None))
    # The areas fill the lower right, and begin at zero: the upper left is free.
    right.set_ylim(0, max(rows[-1].sum(), 1) * 1.5)
    right.legend(loc="upper left", ncols=2, fontsize="small")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
