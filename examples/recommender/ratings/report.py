"""The figures and the picture of a training on ratings."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from examples.recommender.ratings.ranking import Ranked

Course = list[tuple[int, Ranked]]


@dataclass(frozen=True)
class Report:
    """The results of one run, as in ``ratings.json``, where a pair is HR@10 and NDCG@10.

    Attributes:
        course: At moments of the training: (step, pair).
        reference: The same for one process with plain torch.
        popular: Of the items with the most ratings, the same for all users.
        best: Of the preferences that the ratings were drawn by; None for ratings from a file.
        rows: Of the tables of users and items.
        batch_size: Pairs in a step.
        steps_per_second: Of all trainers together.
    """

    course: Course
    reference: Course
    popular: Ranked
    best: Ranked | None
    rows: list[int]
    batch_size: int
    steps_per_second: float

    def write(self, path: Path) -> None:
        """Writes the figures as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def draw(report: Report, path: Path) -> None:
    """HR@10 and NDCG@10 against the steps."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, place, name in zip(figure.subplots(1, 2), (0, 1), ("HR@10", "NDCG@10"), strict=True):
        for course, style, label in (
            (report.course, "o-", "tables on owners"),
            (report.reference, "x--", "one process, torch.nn.Embedding"),
        ):
            axes.plot([step for step, _ in course], [ranked[place] for _, ranked in course], style, label=label)
        if report.best is not None:
            axes.axhline(report.best[place], color="gray", linestyle=":", label="the hidden preferences")
        axes.axhline(report.popular[place], color="gray", linestyle="-.", label="the most popular items")
        axes.set(xlabel="steps of all trainers", ylabel=name, xlim=(0, None), ylim=(0, None))
        axes.legend(loc="lower right")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
