"""Draws the sides of each steady row: medians as bars, and the ranges of their turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.fleet import OURS, OURS_TCP, SIDES
from benchmarks.picture import AUTO, FAINT, GRID, INK, STYLE, TCP
from benchmarks.report import Report
from benchmarks.rows import PER_SECOND
from benchmarks.steady import LABELS, lines

_SIDE_INCHES = 0.32
_ROW_INCHES = 0.55
"""Height of one side, and of a row's heading."""


def draw(path: Path, reports: Sequence[Report]) -> None:
    """Writes the picture as a PNG.

    Args:
        path: The file to write.
        reports: The reports of steady rows.
    """
    heights = [_ROW_INCHES + _SIDE_INCHES * len(lines(report)) for report in reports]
    total = sum(heights) + 0.3
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12, total), dpi=150, facecolor="white")
        top = total
        for report, height in zip(reports, heights, strict=True):
            top -= height
            axes = figure.add_axes((0.11, (top + 0.05) / total, 0.48, (height - _ROW_INCHES) / total))
            _row(axes, report)
        figure.savefig(path)


def _row(axes: Axes, report: Report) -> None:
    better = "more" if report["unit"] in PER_SECOND else "less"
    axes.set_title(f"{report['name']}, {report['unit']} ({better} is better)", loc="left", fontsize=11, weight="bold")
    sides = [side for side in SIDES if report[side] is not None]
    for place, (side, line) in enumerate(zip(sides, lines(report), strict=True)):
        color = {OURS: AUTO, OURS_TCP: TCP}.get(side, FAINT)
        axes.barh(place, report[side], 0.7, color=color, zorder=2)
        axes.plot(report["range"][side], [place, place], color=INK, linewidth=1.5, zorder=3)
        text = line.result + (f"   ours is {line.ratio} times as fast" if line.ratio else "")
        axes.annotate(text, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(sides)), [LABELS[side] for side in sides])
    axes.set_ylim(len(sides) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.tick_params(axis="both", length=0, labelsize=8.5)
    axes.xaxis.set_visible(False)
    axes.grid(axis="x", color=GRID)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
