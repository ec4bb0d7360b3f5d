"""Draws the perplexity of a run, epoch by epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from examples.word_language_model.report import Report

INCHES = (10.0, 6.0)
DPI = 150
LEFT, RIGHT = 0.085, 0.80
APART = 1.3
"""The least ratio of the heights of two labels."""

INK = "#22303c"
FAINT = "#8795a1"
GRID = "#e6eaee"
HELD_OUT = "#2667b5"
LEARNT = "#e08a1e"

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
    """Writes the picture as a PNG of 1500 x 900 pixels.

    Args:
        path: the file to write; its directory is there.
        report: the run's figures.
    """
    # Figure without pyplot draws with Agg and needs no display.
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=INCHES, dpi=DPI, facecolor="white")
        axes = figure.add_axes((LEFT, 0.11, RIGHT - LEFT, 0.675))
        _heading(figure, report)
        _curves(axes, report)
        _axes(axes, report)
        figure.savefig(path)


def _heading(figure: Figure, report: Report) -> None:
    words = f"{report.words['learnt']:,} words learnt, {report.words['held_out']:,} held out"
    what = f"Python's manual: {words}; embedding table and decoder on the owner, LSTM on the trainer"
    figure.text(LEFT, 0.925, "A word language model in two processes", fontsize=17, fontweight="bold")
    figure.text(LEFT, 0.875, what, color=FAINT, fontsize=10.5)


def _curves(axes: Axes, report: Report) -> None:
    epochs = report.epochs
    held_out = [epoch.held_out_perplexity for epoch in epochs]
    learnt = [(epoch.number, epoch.train_perplexity) for epoch in epochs if epoch.train_perplexity is not None]
    axes.plot(*zip(*learnt, strict=True), color=LEARNT, linewidth=1.8, marker="o", markersize=4)
    axes.plot([epoch.number for epoch in epochs], held_out, color=HELD_OUT, linewidth=2.6, marker="o", markersize=5)
    axes.axhline(report.unigram_perplexity, color=FAINT, linewidth=1.3, linestyle=(0, (5, 4)))
    _labels(axes, [
        (held_out[-1], f"held out: {held_out[-1]:.1f}", HELD_OUT),
        (learnt[-1][1], f"learnt: {learnt[-1][1]:.1f}", LEARNT),
        (report.unigram_perplexity, f"word frequencies\nalone: {report.unigram_perplexity:.0f}", FAINT),
    ])  # fmt: skip
    axes.annotate(f"{held_out[0]:,.0f}, untrained", (0, held_out[0]), xytext=(10, 0), textcoords="offset points",
                  color=HELD_OUT, va="center")  # fmt: skip


def _labels(axes: Axes, labels: list[tuple[float, str, str]]) -> None:
    """Writes beside the curves where they end; labels that would overlap are pushed apart."""
    lowest = 0.0
    for height, text, color in sorted(labels):
        lowest = max(height, lowest * APART)
        axes.annotate(
            text, (1, lowest), xycoords=("axes fraction", "data"), xytext=(8, 0), textcoords="offset points",
            color=color, fontweight="bold", va="center", annotation_clip=False,
        )  # fmt: skip


def _axes(axes: Axes, report: Report) -> None:
    axes.set_title("Perplexity (logarithmic)", loc="left", fontsize=12, fontweight="bold", pad=8)
    axes.set_xlabel("epoch; a dotted line where the learning rate was divided by four")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_yticks([10, 20, 50, 100, 200, 500, 1000, 2000])
    axes.minorticks_off()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    learnt = [epoch.train_perplexity for epoch in report.epochs if epoch.train_perplexity is not None]
    every = [*learnt, *(epoch.held_out_perplexity for epoch in report.epochs), report.unigram_perplexity]
    axes.set_ylim(min(every) * 0.8, max(every) * 1.3)
    axes.margins(x=0.02)
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for before, epoch in zip(report.epochs, report.epochs[1:], strict=False):
        if epoch.lr < before.lr:
            axes.axvline(epoch.number - 0.5, color=FAINT, linewidth=1.2, linestyle=":")
