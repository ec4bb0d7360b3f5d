"""The table and the picture of all modes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib
from matplotlib import pyplot
from rich.box import MARKDOWN
from rich.table import Table

from examples.mpi_ps.settings import Settings
from examples.mpi_ps.training import Run

_BEGUN: Final = 1e-3
"""Part of all bytes of a mode from which on it is drawn."""


def table(runs: list[Run], settings: Settings) -> Table:
    """One line for each mode."""
    found = Table(box=MARKDOWN, header_style="bold")
    for title in ("mode", "s", "gradients/s", "sent, MB", "of sync", "loss", "accuracy"):
        found.add_column(title, justify="left" if title == "mode" else "right")
    whole = next((run.points[-1].sent for run in runs if run.name == "sync"), None)
    for run in runs:
        end = run.points[-1]
        found.add_row(
            run.name,
            f"{end.seconds:.1f}",
            f"{settings.trainers * settings.steps / end.seconds:.0f}",
            f"{end.sent / 1e6:.1f}",
            f"{100 * end.sent / whole:.1f} %" if whole else "",
            f"{end.loss:.4f}",
            f"{100 * end.accuracy:.1f} %",
        )
    return found


def draw(runs: list[Run], path: Path) -> None:
    """The loss on test digits against time, and against the bytes that trainers have sent."""
    matplotlib.use("Agg")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 4.5), sharey=True, layout="constrained")
    for run in runs:
        losses = [point.loss for point in run.points]
        style = "--" if "top" in run.name else "-"
        left.plot([point.seconds for point in run.points], losses, style, label=run.name)
        # Before that a trainer has sent requests, but no gradient.
        sent = [point for point in run.points if point.sent > run.points[-1].sent * _BEGUN]
        right.plot([point.sent / 1e6 for point in sent], [point.loss for point in sent], style, label=run.name)
    left.set(yscale="log", xlabel="seconds", ylabel="loss on test digits")
    right.set(xscale="log", xlabel="MB sent by the trainers")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize="small")  # covers no curve
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
