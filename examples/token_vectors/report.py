"""The figures and the picture of a training."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

from examples.token_vectors.neighbours import SHOWN
from examples.token_vectors.training import Trained


def write(trained: Trained, path: Path) -> None:
    """Writes the figures as JSON."""
    neighbours = trained.neighbours
    figures = {
        "tokens": trained.tokens,
        "different": trained.different,
        "pairs_per_second": trained.pairs_per_second,
        "seconds": trained.seconds,
        "steps": trained.steps,
        "losses": trained.losses,
        "rows": trained.rows,
        "found": list(neighbours.found()) if neighbours else None,
        "neighbours": {token: neighbours.nearest(token) for token in SHOWN} if neighbours else {},
    }
    path.write_text(json.dumps(figures, indent=2) + "\n")


def draw(trained: Trained, path: Path) -> None:
    """The loss and the rows of both tables against the steps."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(trained.steps, trained.losses, "o-")
    left.set(xlabel="steps of all trainers", ylabel="loss of a pair and its negatives", xlim=(0, None))
    right.plot([0, *trained.steps], [0, *(rows[0] for rows in trained.rows)], "o-", label="tokens")
    right.plot([0, *trained.steps], [0, *(rows[1] for rows in trained.rows)], "x--", label="contexts")
    right.axhline(trained.different, color="gray", linestyle=":", label="different identifiers in the text")
    right.set(xlabel="steps of all trainers", ylabel="rows", xlim=(0, None), ylim=(0, None))
    right.legend(loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
