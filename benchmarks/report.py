"""Medians, ratios and targets, as in `bench.json`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.fleet import DURABLE_OFF, GLOO, LOCAL, LOCAL_PAUSED, OURS, OURS_TCP, SIDES, TLS, TORCH, TORCH_TCP
from benchmarks.harness import Entrant
from benchmarks.rows import Row

Report = dict[str, Any]

AT_MOST: Final = ("over_paused", "over_baseline", *TLS)
"""Ratios that are to be small."""

FairQueue = Sequence[float | None]


def row_report(row: Row, entrants: Sequence[Entrant]) -> Report:
    """The report of one row.

    `speedup` and the other ratios are medians over rounds of the ratio within a round; above 1 we are faster, than
    gloo in its rows.
    `over_baseline` is our time divided by that of the row's baseline; `over_local` and `over_paused`, by that of local
    torch without and with pauses. A side with an error has no result and no ratio. A steady row has the lowest and
    highest result of each side, too, and against each other side its time divided by ours; a row of durability, that
    of each side divided by the time without a log. A row of TLS has `over_plain` and `over_plain_grpc`.
    """
    turns: dict[str, FairQueue] = {each.column: each.turns for each in entrants if not each.error}
    ratios = {
        "speedup": _ratios(turns, GLOO if row.gloo else TORCH, OURS),
        "speedup_tcp": _ratios(turns, GLOO if row.gloo else TORCH_TCP, OURS_TCP),
    }
    if row.local:
        ratios["over_local"] = _ratios(turns, OURS, LOCAL)
        ratios["over_paused"] = _ratios(turns, OURS, LOCAL_PAUSED)
    if row.shape.tls:
        ratios |= {name: _ratios(turns, over, under) for name, (over, under) in TLS.items()}
    if row.over_baseline is not None:
        ratios["over_baseline"] = _ratios(turns, OURS, f"{OURS}_{row.baseline}")
    elif row.baseline:
        ratios["over_one_owner"] = _ratios(turns, f"{OURS}_{row.baseline}", OURS)
    target = _target(row)
    base = DURABLE_OFF if row.shape.durable else OURS
    ranges = {"range": _ranges(row, turns), "against": _against(turns, base)} if row.steps else {}
    figures = {name: _median(values) for name, values in ratios.items()}
    return {
        "name": row.name,
        "work": row.work,
        "unit": row.unit,
        **{side: _figure(row, turns.get(side, ())) for side in SIDES},
        **{column: _figure(row, turns[column]) for column in turns if column not in SIDES},
        **figures,
        **ranges,
        "target": target,
        "reached": {name: _reached(name, figures.get(name), wanted) for name, wanted in target.items()},
        "spread": {name: _spread(values) for name, values in ratios.items()},
        "rounds": max((len(each.turns) for each in entrants), default=0),
        "per_turn": {each.column: each.done[-1] for each in entrants if each.done},
        "turns": {
            column: [None if turn is None else _rounded(row.shown(turn)) for turn in values]
            for column, values in turns.items()
        },
        "lost": {each.column: each.lost for each in entrants if each.lost},
        "errors": {each.column: each.error for each in entrants if each.error},
    }


def write(path: Path, report: Report) -> None:
    """Writes a report with one line for each row, so that two reports can be compared line by line."""
    head = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in report.items() if key != "rows")
    rows = ",\n".join(json.dumps(row) for row in report["rows"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{\n{head},\n"rows": [\n{rows}\n]\n}}\n')


def _target(row: Row) -> dict[str, float]:
    wanted = {"speedup": row.target, "speedup_tcp": row.target_tcp, "over_paused": row.over_paused}
    wanted |= {"over_baseline": row.over_baseline} | dict.fromkeys(TLS, row.over_plain)
    if row.baseline and row.over_baseline is None:
        wanted["over_one_owner"] = 1.0
    return {name: value for name, value in wanted.items() if value is not None}


def _reached(name: str, figure: float | None, wanted: float) -> bool:
    if figure is None:
        return False
    return figure <= wanted if name in AT_MOST else figure >= wanted


def _ratios(turns: dict[str, FairQueue], over: str, under: str) -> list[float]:
    pairs = zip(turns.get(over, ()), turns.get(under, ()), strict=False)
    return [a / b for a, b in pairs if a is not None and b is not None]


def _ranges(row: Row, turns: dict[str, FairQueue]) -> dict[str, tuple[float, float]]:
    shown = {side: [row.shown(turn) for turn in values if turn is not None] for side, values in turns.items()}
    return {side: (_rounded(min(values)), _rounded(max(values))) for side, values in shown.items() if values}


def _against(turns: dict[str, FairQueue], base: str) -> dict[str, dict[str, float]]:
    ratios = {side: _ratios(turns, side, base) for side in turns if side != base}
    return {
        side: {
            "median": _rounded(statistics.median(values)),
            "min": _rounded(min(values)),
            "max": _rounded(max(values)),
        }
        for side, values in ratios.items()
        if values
    }


def _figure(row: Row, turns: FairQueue) -> float | None:
    middle = _median([row.shown(turn) for turn in turns if turn is not None])
    return None if middle is None else _rounded(middle)


def _median(values: Sequence[float]) -> float | None:
    return _rounded(statistics.median(values)) if values else None


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    quarter, _, three_quarters = statistics.quantiles(values, n=4, method="inclusive") if values[1:] else values * 3
    spread = {"min": min(values), "q1": quarter, "q3": three_quarters, "max": max(values)}
    return {name: _rounded(value) for name, value in spread.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
