"""Draws the losses, the accuracy and some digits of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpecFromSubplotSpec, SubplotSpec
from numpy.typing import NDArray
from torch import Tensor

from examples.digits.data import Part
from examples.digits.report import Report

INCHES = (12.0, 8.0)
DPI = 150
LEFT = 0.065
COLUMNS = 16
ROWS = 2

INK = "#22303c"
FAINT = "#8795a1"
GRID = "#e6eaee"
RIGHT = "#2a9d6f"
WRONG = "#d1495b"
TRAINERS = ("#2667b5", "#e08a1e", "#7b4fa3", "#1f9aa8", "#a8552e", "#66788a", "#c65b9b", "#8a9a1f")

STYLE: dict[Any, str | int] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
}


def draw(path: Path, report: Report, held_out: Part, predictions: Tensor) -> None:
    """Writes the picture as a PNG of 1800 x 1200 pixels.

    Args:
        path: the file to write.
        report: the report of the run.
        held_out: the held-out digits.
        predictions: the predictions for them, ``[N]`` int64.
    """
    # Figure without pyplot draws with Agg and needs no display.
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=INCHES, dpi=DPI, facecolor="white")
        outer = figure.add_gridspec(
            2, 2, width_ratios=[3.1, 1], height_ratios=[2.2, 1],
            left=LEFT, right=0.975, top=0.835, bottom=0.035, wspace=0.06, hspace=0.42,
        )  # fmt: skip
        _heading(figure, report)
        _losses(figure.add_subplot(outer[0, 0]), report.loss)
        _figures(figure.add_subplot(outer[0, 1]), report, len(held_out))
        _digits(figure, outer[1, :], held_out, predictions)
        figure.savefig(path)


def _heading(figure: Figure, report: Report) -> None:
    who = "1 trainer teaches" if report.trainers == 1 else f"{report.trainers} trainers teach"
    what = f"one owner hosts the ConvNet, {who} it from processes of their own"
    figure.text(LEFT, 0.942, "Handwritten digits on a parameter server", fontsize=19, fontweight="bold")
    figure.text(LEFT, 0.908, what, color=FAINT, fontsize=12)


def _losses(axes: Axes, losses: list[list[float]]) -> None:
    for rank, values in enumerate(losses):
        color = TRAINERS[rank % len(TRAINERS)]
        loss = np.asarray(values)
        steps = np.arange(1, len(loss) + 1)
        axes.plot(steps, loss, color=color, alpha=0.22, linewidth=0.8)
        axes.plot(steps, smooth(loss), color=color, linewidth=2.2, label=f"trainer {rank}")
    axes.set_title("Loss of each trainer's batches", loc="left", fontsize=12.5, fontweight="bold", pad=10)
    axes.set_xlabel("step of the trainer")
    axes.set_ylabel("negative log-likelihood")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right", ncols=1 if len(losses) <= 6 else 2)


def smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Averages over a window of a thirtieth of the curve, less where the curve ends."""
    half = max(len(values) // 60, 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    middle = np.arange(len(values))
    first, last = np.maximum(middle - half, 0), np.minimum(middle + half + 1, len(values))
    return np.asarray((sums[last] - sums[first]) / (last - first))


def _figures(axes: Axes, report: Report, held_out: int) -> None:
    axes.set_axis_off()
    read = round(report.accuracy * held_out)
    axes.text(
        0.5, 0.80, f"{report.accuracy:.1%}", fontsize=40, fontweight="bold", color=RIGHT, ha="center", va="center"
    )
    axes.text(0.5, 0.635, f"{read:,} of {held_out:,} held-out\ndigits read correctly", ha="center", va="center")
    axes.plot([0.18, 0.82], [0.505, 0.505], color=GRID, linewidth=1.5)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    rows = [
        (f"{report.steps_per_second:,.1f}", "steps per second"),
        (f"{report.steps:,}", "steps"),
        (f"{report.seconds:,.1f}", "seconds"),
    ]
    for place, (value, unit) in enumerate(rows):
        height = 0.39 - 0.15 * place
        axes.text(0.44, height, value, fontsize=16, fontweight="bold", ha="right", va="center")
        axes.text(0.49, height, unit, ha="left", va="center")


def _digits(figure: Figure, place: SubplotSpec, held_out: Part, predictions: Tensor) -> None:
    box = place.get_position(figure)
    figure.text(box.x0, box.y1 + 0.038, "Held-out digits and what the network read", fontsize=12.5, fontweight="bold")
    if wrong := int((predictions != held_out.labels).sum()):
        legend = f"red: misread, the truth in brackets ({wrong} in all)"
        figure.text(box.x1, box.y1 + 0.038, legend, color=WRONG, ha="right")
    cells = GridSpecFromSubplotSpec(ROWS, COLUMNS, subplot_spec=place, wspace=0.12, hspace=0.42)
    for cell, index in enumerate(_choose(held_out.labels.tolist(), predictions.tolist())):
        axes = figure.add_subplot(cells[divmod(cell, COLUMNS)])
        axes.imshow(held_out.images[index, 0].numpy(), cmap="gray_r", interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        label, prediction = int(held_out.labels[index]), int(predictions[index])
        right = label == prediction
        axes.set_title(
            f"{prediction}" if right else f"{prediction} ({label})",
            color=RIGHT if right else WRONG, fontsize=12.5, fontweight="bold", pad=3,
        )  # fmt: skip
        for spine in axes.spines.values():
            spine.set(color=GRID if right else WRONG, linewidth=1 if right else 2.5)


def _choose(labels: list[int], predictions: list[int]) -> list[int]:
    """Picks misclassified digits for up to a third of the cells, then correct ones, and returns them by label."""
    places = ROWS * COLUMNS
    wrong = [index for index, label in enumerate(labels) if predictions[index] != label][: places // 3]
    # The n-th of a label comes in turn n, so every label gets its share whatever order the data set has.
    turns = [0] * 10
    right: list[tuple[int, int]] = []
    for index, label in enumerate(labels):
        if predictions[index] == label:
            right.append((turns[label], index))
            turns[label] += 1
    chosen = wrong + [index for _, index in sorted(right)[: places - len(wrong)]]
    return sorted(chosen, key=lambda index: (labels[index], index))
