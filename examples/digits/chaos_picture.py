"""Draws a run whose owner was killed: losses and steps over time, with the kills."""

from __future__ import annotations

import statistics
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.digits.picture import DPI, FAINT, GRID, INCHES, LEFT, RIGHT, STYLE, TRAINERS, WRONG, smooth
from examples.digits.report import ChaosReport


def draw(path: Path, report: ChaosReport) -> None:
    """Writes the picture as a PNG of 1800 x 1200 pixels."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=INCHES, dpi=DPI, facecolor="white")
        grid = figure.add_gridspec(
            2, 2, width_ratios=[3.1, 1], height_ratios=[1.5, 1],
            left=LEFT, right=0.975, top=0.835, bottom=0.075, wspace=0.06, hspace=0.42,
        )  # fmt: skip
        figure.text(LEFT, 0.942, "Training while the owner is killed", fontsize=19, fontweight="bold")
        what = "kill -9, and a start on the same data directory; red: from each kill until the owner serves again"
        figure.text(LEFT, 0.908, what, color=FAINT, fontsize=12)
        above = figure.add_subplot(grid[0, 0])
        below = figure.add_subplot(grid[1, 0], sharex=above)
        _losses(above, report)
        _steps(below, report)
        for axes in (above, below):
            _kills(axes, report)
            axes.set_xlim(0, report.seconds)
            axes.set_xlabel("seconds since the trainers began")
            axes.set_ylim(bottom=0)
            axes.grid(color=GRID)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        _figures(figure.add_subplot(grid[:, 1]), report)
        figure.savefig(path)


def _losses(axes: Axes, report: ChaosReport) -> None:
    for rank, (times, losses) in enumerate(zip(report.times, report.loss, strict=True)):
        color = TRAINERS[rank % len(TRAINERS)]
        places = np.searchsorted(times, [(at + back) / 2 for at, back in report.kills])
        for values, style in (
            (np.asarray(losses), {"alpha": 0.22, "linewidth": 0.8}),
            (smooth(np.asarray(losses)), {"linewidth": 2.2, "label": f"trainer {rank}"}),
        ):
            # No curve where no steps were taken.
            broken = np.insert(np.column_stack([times, values]), places, np.nan, axis=0)
            axes.plot(*broken.T, color=color, **style)
    axes.set_title("Loss of each trainer's batches", loc="left", fontsize=12.5, fontweight="bold", pad=10)
    axes.set_ylabel("negative log-likelihood")
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, ncols=min(report.trainers, 5))


def _steps(axes: Axes, report: ChaosReport) -> None:
    times = sorted(taken for each in report.times for taken in each)
    axes.plot([0.0, *times], np.arange(len(times) + 1), color=TRAINERS[-3], linewidth=2.2)
    axes.set_title("Steps of all trainers", loc="left", fontsize=12.5, fontweight="bold", pad=10)
    axes.set_ylabel("steps")


def _kills(axes: Axes, report: ChaosReport) -> None:
    for at, back in report.kills:
        axes.axvspan(at, back, color=WRONG, alpha=0.13, linewidth=0)
        axes.axvline(at, color=WRONG, linewidth=1.2)


def _figures(axes: Axes, report: ChaosReport) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.text(
        0.5, 0.90, f"{report.accuracy:.1%}", fontsize=40, fontweight="bold", color=RIGHT, ha="center", va="center"
    )
    axes.text(0.5, 0.82, "of the held-out digits\nread correctly", ha="center", va="center")
    axes.plot([0.18, 0.82], [0.75, 0.75], color=GRID, linewidth=1.5)
    rows = [
        (f"{len(report.kills):,}", "kills"),
        (f"{report.steps:,}", "acknowledged steps"),
        (f"{report.version:,}", "applied steps"),
        (f"{report.repeated:,}", "repeated passes"),
        (f"{statistics.median(report.pauses):.1f} s" if report.pauses else "none", "median pause"),
        (f"{max(report.pauses):.1f} s" if report.pauses else "none", "longest pause"),
        (f"{report.seconds:,.1f} s", "in all"),
    ]
    for place, (value, unit) in enumerate(rows):
        height = 0.67 - 0.085 * place
        axes.text(0.37, height, value, fontsize=16, fontweight="bold", ha="right", va="center")
        axes.text(0.41, height, unit, ha="left", va="center")
