"""Draws the speed-up of each row, and its target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.report import Report

INK = "#22303c"
FAINT = "#8795a1"
GRID = "#e6eaee"
AUTO = "#2667b5"
TCP = "#1f9aa8"
MISSED = "#d1495b"

STYLE: dict[Any, str | int] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
}

BARS = (("speedup", AUTO, 0.2), ("speedup_tcp", TCP, -0.2))
"""Name of the ratio, colour of its bar, and its offset in the row."""
THICKNESS = 0.34
LETTER = 0.0074
"""Width of a letter of a row's name, as a part of the picture's."""
TIMES = "\N{MULTIPLICATION SIGN}"
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)


def draw(path: Path, report: Report) -> None:
    """Writes the picture as a PNG.

    Args:
        path: The file to write.
        report: The report.
    """
    rows = report["rows"]
    # Figure without pyplot draws with Agg and needs no display.
    with matplotlib.rc_context(STYLE):
        height = 2.3 + 0.56 * len(rows)
        figure = Figure(figsize=(12, height), dpi=150, facecolor="white")
        left = 0.025 + LETTER * max(len(row["name"]) for row in rows)
        axes = figure.add_axes((left, 1.0 / height, 0.965 - left, 1 - 2.3 / height))
        _heading(figure, report, height)
        _bars(axes, rows)
        figure.savefig(path)


def _heading(figure: Figure, report: Report, height: float) -> None:
    machine = report["machine"]
    what = (
        f"same work, same machine, in turn; median and quarters over rounds · {machine['cores']} cores, "
        f"torch {machine['torch']}, grpcio {machine['grpcio']}"
    )
    if report["quick"]:
        what = "A QUICK RUN, TO SEE WHETHER IT WORKS: THESE FIGURES MEAN NOTHING"
    figure.text(0.02, 1 - 0.45 / height, "How many times faster than torch.distributed.rpc", fontsize=19, weight="bold")
    figure.text(0.02, 1 - 0.78 / height, what, color=FAINT, fontsize=11.5)
    figure.legend(
        handles=[
            Patch(color=AUTO, label="each as it picks its transport"),
            Patch(color=TCP, label="both held to TCP"),
            Line2D([], [], color=INK, marker="|", markersize=13, markeredgewidth=2.5, linestyle="", label="target"),
            Patch(facecolor="white", edgecolor=FAINT, hatch="////", label="target missed"),
        ],
        loc="lower left",
        bbox_to_anchor=(0.13, 0.02 / height),
        ncols=4,
        frameon=False,
        columnspacing=2.2,
    )


def _bars(axes: Axes, rows: list[Report]) -> None:
    places = range(len(rows) - 1, -1, -1)
    for place, row in zip(places, rows, strict=True):
        for name, color, offset in BARS:
            if row[name] is None:
                note = {"color": MISSED, "va": "center", "fontsize": 9.5}
                axes.annotate("no figure", (1, place + offset), (6, 0), textcoords="offset points", **note)
            else:
                _bar(axes, place + offset, row, name, color)
    axes.set_xscale("log")
    edges = [edge for row in rows for name, *_ in BARS for edge in _edges(row, name)]
    axes.set_xlim(min([0.7, *edges]) / 1.12, max([2.0, *edges]) * 1.75)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_yticks(list(places), [row["name"] for row in rows])
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{TIMES}"))
    axes.axvline(1, color=INK, linewidth=1.4, zorder=3)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _bar(axes: Axes, y: float, row: Report, name: str, color: str) -> None:
    figure, spread, wanted = row[name], row["spread"][name], row["target"].get(name)
    missed = wanted is not None and not row["reached"][name]
    # Bars begin at 1, where both are equal; to the left we are slower.
    axes.barh(
        y, figure - 1, THICKNESS, left=1,
        facecolor="white" if missed else color, edgecolor=color, hatch="////" if missed else None,
        zorder=2,
    )  # fmt: skip
    axes.plot([spread["q1"], spread["q3"]], [y, y], color=INK, linewidth=1.3, zorder=4, solid_capstyle="butt")
    if wanted is not None:
        axes.plot([wanted, wanted], [y - 0.21, y + 0.21], color=INK, linewidth=2.5, zorder=5, solid_capstyle="butt")
    end = max([1.0, figure, spread["q3"], wanted or 0.0])
    label = f"{figure:.2f}{TIMES}" + (f"  (wanted {wanted:g}{TIMES})" if missed else "")
    ink = MISSED if missed else INK
    axes.annotate(label, (end, y), (6, 0), textcoords="offset points", va="center", fontsize=9.5, color=ink)


def _edges(row: Report, name: str) -> list[float]:
    if row[name] is None:
        return []
    spread = row["spread"][name]
    return [spread["q1"], spread["q3"], row["target"].get(name, row[name])]
