"""Draws the learning curve of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.cartpole.report import Report

INCHES = (12.0, 6.5)
DPI = 150

INK = "#22303c"
FAINT = "#8795a1"
GRID = "#e6eaee"
RUNNING = "#22303c"
THRESHOLD = "#2a9d6f"
OBSERVERS = ("#2667b5", "#e08a1e", "#7b4fa3", "#1f9aa8", "#a8552e", "#66788a", "#c65b9b", "#8a9a1f")

STYLE: dict[Any, str | int] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
}


def draw(path: Path, report: Report) -> None:
    """Writes the picture as a PNG of 1800 x 975 pixels.

    Args:
        path: The file to write.
        report: The report of the run.
    """
    # Figure without pyplot draws with Agg and needs no display.
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=INCHES, dpi=DPI, facecolor="white")
        axes = figure.add_subplot()
        figure.subplots_adjust(left=0.07, right=0.975, top=0.80, bottom=0.105)
        _heading(figure, report)
        _curve(axes, report)
        figure.savefig(path)


def _heading(figure: Figure, report: Report) -> None:
    who = "1 observer plays" if report.observers == 1 else f"{report.observers} observers play"
    end = "solved" if report.solved else "not solved"
    what = (
        f"{who}, one agent learns: {end} after {report.episodes} episodes each, "
        f"{report.steps:,} steps and {2 * report.steps:,} calls in {report.seconds:,.1f} s"
    )
    figure.text(0.07, 0.925, "CartPole over RPC", fontsize=19, fontweight="bold")
    figure.text(0.07, 0.88, what, color=FAINT, fontsize=12)


def _curve(axes: Axes, report: Report) -> None:
    episodes = range(1, report.episodes + 1)
    for place, rewards in enumerate(zip(*report.rewards, strict=True)):
        color = OBSERVERS[place % len(OBSERVERS)]
        axes.scatter(episodes, rewards, s=22, color=color, alpha=0.55, linewidths=0, label=f"observer {place + 1}")
    axes.plot(episodes, report.running, color=RUNNING, linewidth=2.4, label="running average of the weakest")
    axes.axhline(report.threshold, color=THRESHOLD, linewidth=1.6, linestyle=(0, (5, 3)))
    axes.annotate(
        f"solved above {report.threshold:g}",
        (0.005, report.threshold), xycoords=("axes fraction", "data"), xytext=(0, 4), textcoords="offset points",
        color=THRESHOLD, fontweight="bold",
    )  # fmt: skip
    axes.set_xlabel("episode")
    axes.set_ylabel("reward: steps the pole stood")
    axes.set_ylim(0, 525)
    axes.margins(x=0.01)
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=min(len(report.rewards[0]) + 1, 5),
        borderaxespad=0.2, handletextpad=0.5, columnspacing=1.4,
    )  # fmt: skip
