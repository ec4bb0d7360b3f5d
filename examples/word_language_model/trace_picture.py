"""Draws the chrome trace of one step: a band for each process, and bars for what it did."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.word_language_model.picture import DPI, FAINT, GRID, INK, STYLE

INCHES = (12.0, 5.6)
LEFT, RIGHT, BOTTOM, TOP = 0.16, 0.975, 0.12, 0.78

PHASES: Final = ("forward", "backward", "clip", "step")
COLORS: Final = dict(zip(PHASES, ("#2667b5", "#e08a1e", "#8a63b8", "#2f9e6e"), strict=True))
OTHER: Final = "#b8c1ca"

_OF_OPERATIONS: Final = {"backward": "backward", "norm": "clip", "scale": "clip", "step": "step"}
"""The phases of requests that are no calls."""


_WAITS: Final = ("SendRpcBackward", "RecvRpcBackward")
"""Nodes of the graph that wait for a request, which has a bar of its own."""

_LETTER: Final = 0.0068
"""Width of a letter, in widths of the axes."""


class Bar(NamedTuple):
    """A bar.

    Attributes:
        row: Its row.
        begin: When it begins, in milliseconds.
        end: When it ends.
        phase: Its phase of the step; empty for none.
        text: What stands in it, if there is space.
    """

    row: str
    begin: float
    end: float
    phase: str
    text: str = ""


ROWS: Final = ("phases", "operators", "requests", "work")


def draw(path: Path, trace: dict[str, Any]) -> None:
    """Writes the picture as a PNG.

    Args:
        path: The file; its directory is there.
        trace: The chrome trace.
    """
    bars = list(bars_of(trace["traceEvents"]))
    with matplotlib.rc_context(STYLE):
        # Figure without pyplot draws with Agg and needs no display.
        figure = Figure(figsize=INCHES, dpi=DPI, facecolor="white")
        axes = figure.add_axes((LEFT, BOTTOM, RIGHT - LEFT, TOP - BOTTOM))
        _heading(figure, bars)
        _rows(axes)
        width = max(bar.end for bar in bars)
        axes.set_xlim(0, width * 1.01)
        for row in ROWS:
            _bars(axes, [bar for bar in bars if bar.row == row], width)
        _axes(axes)
        figure.savefig(path)


def bars_of(events: Sequence[dict[str, Any]]) -> Iterable[Bar]:
    """The bars of a trace of one step."""
    spans = [each for each in events if each.get("ph") == "X" and each.get("cat") not in ("Trace", None)]
    phases = [each for each in spans if each["cat"] == "user_annotation" and each["name"] in PHASES]
    zero = min(each["ts"] for each in phases)
    for each in phases:
        yield _bar_of("phases", [each], zero, each["name"], each["name"])
    here = phases[0]["pid"]
    for each in _outermost(each for each in spans if each["cat"] == "cpu_op" and each["pid"] == here):
        if not each["name"].endswith(_WAITS):
            yield _bar_of("operators", [each], zero, _phase_at(each, phases))
    requests = {each["args"]["request"]: each for each in spans if each["cat"] == "remote_call" and each["pid"] == here}
    for number, each in requests.items():
        what, phase = _described(each["name"])
        yield _bar_of("requests", [each], zero, phase, what)
        ran = [one for one in spans if one["args"].get("request") == number and one["pid"] != here]
        if ran:
            yield _bar_of("work", ran, zero, phase, what)


def _described(name: str) -> tuple[str, str]:
    """What a request asks for, in a few words, and the phase that it belongs to."""
    called = re.match(r"rpc_\w+#([\w.]+)\(", name)
    if called:
        return called[1].removesuffix(".forward"), "forward"
    operation = re.sub(r"^rpc_(\w+).*", r"\1", name)
    return operation, _OF_OPERATIONS.get(operation, "")


def _phase_at(event: dict[str, Any], phases: Sequence[dict[str, Any]]) -> str:
    """The phase that an event of the trainer is in."""
    for each in phases:
        if each["ts"] <= event["ts"] <= each["ts"] + each["dur"]:
            return str(each["name"])
    return ""


def _outermost(events: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """The events that are in no other."""
    end = 0.0
    for each in sorted(events, key=lambda each: each["ts"]):
        if each["ts"] >= end:
            end = each["ts"] + each["dur"]
            yield each


def _bar_of(row: str, events: Sequence[dict[str, Any]], zero: float, phase: str, text: str = "") -> Bar:
    begin = min(each["ts"] for each in events)
    end = max(each["ts"] + each["dur"] for each in events)
    return Bar(row, (begin - zero) / 1000, (end - zero) / 1000, phase, text)


# Drawing

_PLACES: Final = {"phases": (3.9, 0.62), "operators": (3.25, 0.36), "requests": (2.45, 0.62), "work": (0.92, 0.62)}
"""The middle and the height of each row."""

_TITLES: Final = {"phases": "phases", "operators": "operators", "requests": "requests to ps", "work": "operators"}


def _bars(axes: Axes, bars: Sequence[Bar], width: float) -> None:
    """Draws a row. A text stands in its bar, or below it if that is too short, and is left out if there is no space."""
    free_from = 0.0
    for bar in sorted(bars, key=lambda bar: bar.begin):
        middle, height = _PLACES[bar.row]
        color = COLORS.get(bar.phase, OTHER)
        axes.barh(middle, bar.end - bar.begin, height, left=bar.begin, color=color, edgecolor="white", linewidth=0.4)
        center, half = (bar.begin + bar.end) / 2, len(bar.text) * width * _LETTER / 2
        if 2 * half < bar.end - bar.begin:
            axes.text(center, middle, bar.text, color="white", ha="center", va="center", fontsize=9)
        elif center - half >= free_from and bar.text:
            below = middle - height / 2 - 0.04
            axes.text(center, below, bar.text, color=color, ha="center", va="top", fontsize=9)
            free_from = center + half


def _rows(axes: Axes) -> None:
    axes.axhspan(1.8, 4.4, color="#f4f7fa", zorder=0)
    axes.axhspan(0.28, 1.5, color="#f4f7fa", zorder=0)
    for row, (middle, _) in _PLACES.items():
        axes.text(-0.012, middle, _TITLES[row], transform=axes.get_yaxis_transform(), ha="right", va="center")
    for name, middle in (("trainer", 3.1), ("ps", 0.85)):
        axes.text(
            -0.178, middle, name, transform=axes.get_yaxis_transform(), va="center", fontsize=13, fontweight="bold"
        )  # fmt: skip


def _axes(axes: Axes) -> None:
    axes.set_ylim(0.1, 4.5)
    axes.set_yticks([])
    axes.set_xlabel("milliseconds")
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _heading(figure: Figure, bars: Sequence[Bar]) -> None:
    took = max(bar.end for bar in bars if bar.row == "phases")
    figure.text(0.02, 0.925, "One step of the word language model", fontsize=17, fontweight="bold")
    where = "embedding table and decoder on the owner ps, LSTM on the trainer"
    what = f"{took:.0f} ms; {where}. Drawn from the chrome trace of torch.profiler"
    figure.text(0.02, 0.87, what, color=FAINT, fontsize=10.5)
    place = 0.62
    for phase in PHASES:
        figure.text(place, 0.93, "\u25a0", color=COLORS[phase], fontsize=15, va="center")
        figure.text(place + 0.018, 0.93, phase, color=INK, va="center")
        place += 0.035 + 0.009 * len(phase)
