"""Draws one small chart per series: the time of a step against the growing quantity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.picture import AUTO, FAINT, GRID, INK, STYLE

LOCAL = "#e08a1e"
COLUMNS = 3


def draw(path: Path, report: dict[str, Any]) -> None:
    """Writes the picture as a PNG.

    Args:
        path: The file to write.
        report: The report.
    """
    series = report["series"]
    rows = -(-len(series) // COLUMNS)
    height = 1.5 + 3.4 * rows
    # Figure without pyplot draws with Agg and needs no display.
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, height), dpi=150, facecolor="white")
        _heading(figure, report, height)
        grid = figure.add_gridspec(
            rows, COLUMNS, left=0.055, right=0.985, top=1 - 1.65 / height, bottom=0.65 / height, hspace=0.62, wspace=0.2
        )
        for place, each in enumerate(series):
            _chart(figure.add_subplot(grid[divmod(place, COLUMNS)]), each)
        figure.savefig(path)


def _heading(figure: Figure, report: dict[str, Any], height: float) -> None:
    machine = report["machine"]
    what = (
        f"one owner, milliseconds per step, median and quarters · {machine['cores']} cores, torch {machine['torch']}, "
        f"grpcio {machine['grpcio']}"
    )
    if report["quick"]:
        what = "A QUICK RUN, TO SEE WHETHER IT WORKS: THESE FIGURES MEAN NOTHING"
    figure.text(0.02, 1 - 0.47 / height, "How the cost of a step grows", fontsize=19, weight="bold")
    figure.text(0.02, 1 - 0.8 / height, what, color=FAINT, fontsize=11.5)


def _chart(axes: Axes, series: dict[str, Any]) -> None:
    points = series["points"]
    xs = [point["x"] for point in points]
    middle = [point["ms"] for point in points]
    axes.fill_between(xs, [p["q1"] for p in points], [p["q3"] for p in points], color=AUTO, alpha=0.15, linewidth=0)
    axes.plot(xs, middle, color=AUTO, linewidth=2.2, marker="o", markersize=5, label="on an owner")
    highest = [point["q3"] for point in points]
    lowest = [point["q1"] for point in points]
    if any("local_ms" in point for point in points):
        local = [point["local_ms"] for point in points]
        axes.plot(xs, local, color=LOCAL, linewidth=1.8, marker="o", markersize=4, label="plain torch, local")
        axes.legend(frameon=False, fontsize=9.5, loc="upper left")
        highest += [4 * value for value in local[:1]]
        lowest += local
    for x, value in zip(xs, middle, strict=True):
        axes.annotate(f"{value:.3g}", (x, value), (0, 7), textcoords="offset points", ha="center", fontsize=9)
    axes.set_xscale("log")
    axes.set_yscale("log")
    # At least a decade and a half, so that noise does not look like growth.
    top, bottom = max(highest), min(lowest)
    stretch = max(1.0, (32 / (top / bottom)) ** 0.5)
    axes.set_ylim(bottom / stretch / 1.4, top * stretch * 1.4)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_major_formatter(FuncFormatter(_count))
    axes.set_xticks(xs)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(series["title"], loc="left", fontsize=12.5, fontweight="bold", pad=22)
    axes.text(0, 1.035, _subtitle(series), transform=axes.transAxes, color=FAINT, fontsize=10)
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9.5)


def _subtitle(series: dict[str, Any]) -> str:
    points = series["points"]
    times = "\N{MULTIPLICATION SIGN}"
    said = [f"{points[-1]['x'] / points[0]['x']:,.0f}{times} as many cost {series['growth']:.2f}{times} the time"]
    if "kib_each" in points[-1]:
        said.append(f"{points[-1]['kib_each']:,.0f} KiB each")
    return "; ".join(said)


def _count(value: float, _: int) -> str:
    for size, suffix in ((1_000_000, "M"), (1000, "k")):
        if value >= 10 * size or value == size:
            return f"{value / size:.0f}{suffix}"
    return f"{value:g}"
