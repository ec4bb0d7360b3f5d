"""Measures rows in rounds, in which every side has a turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from benchmarks.fleet import LOCAL, OURS, TORCH, Fleet, takes_part
from benchmarks.process import ChildFailed
from benchmarks.rows import Row, row_named
from benchmarks.work import LOST

T = TypeVar("T")

STEADY_ROUNDS: Final = 5
"""Most turns of each side in a steady row."""

QUICK_PACE: Final = 0.025
"""The pace of `--quick`."""

RTOL: Final = 1e-4
ATOL: Final = 1e-5
"""Tolerance for parameters, losses and outputs against local torch, because sums may be in another order."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The number and length of the measurements.

    Attributes:
        rounds: Turns of each side per row.
        pace: Multiplies the length of a turn.
    """

    rounds: int = 9
    pace: float = 1.0

    def rounds_of(self, row: Row) -> int:
        """Turns of each side in a row: the turns of steady rows are long, and fewer will do."""
        return min(self.rounds, STEADY_ROUNDS) if row.steps else self.rounds


@dataclass(slots=True)
class Entrant:
    """One side in a row.

    Attributes:
        column: The column of the result.
        fleet: The processes.
        row: The work: the row itself, or the row that it is compared with.
        count: Operations of each trainer per turn; for work without state, per repetition within a turn.
        done: Operations of each turn.
        turns: Seconds per operation in each round; None if there is no result.
        error: Why there is no result.
        lost: How many passes were refused and repeated.
    """

    column: str
    fleet: Fleet
    row: Row
    count: int = 1
    done: list[int] = field(default_factory=list)
    turns: list[float | None] = field(default_factory=list)
    error: str = ""
    lost: str = ""


def measure(
    row: Row, fleets: Sequence[Fleet], settings: Settings, scratch: Path, done: Callable[[int], None]
) -> list[Entrant]:
    """Measures one row on all sides, in turn.

    Args:
        row: The row.
        fleets: The sides, in the order of their turns.
        settings: The number and length of the measurements.
        scratch: A folder for temporary results.
        done: Called after every round with its number.
    """
    entrants = [Entrant(fleet.side, fleet, row) for fleet in fleets if takes_part(fleet.side, row)]
    if row.baseline:
        entrants += [
            Entrant(f"{fleet.side}_{row.baseline}", fleet, row_named(row.baseline))
            for fleet in fleets
            if fleet.side in (OURS, TORCH, LOCAL) and takes_part(fleet.side, row)
        ]
    for entrant in entrants:
        _awake(entrant, lambda entrant=entrant: entrant.fleet.ask(do="prepare", row=entrant.row.name))
    _calibrate(row, entrants, settings)
    for number in range(settings.rounds_of(row)):
        for entrant in entrants:
            entrant.turns.append(_awake(entrant, lambda entrant=entrant: _warm_turn(entrant, settings)))
        done(number + 1)
    _compare(entrants, scratch)
    for fleet in fleets:
        fleet.finish()
    return entrants


def _awake(entrant: Entrant, work: Callable[[], T]) -> T | None:
    """Calls a function while the entrant's processes run; a failure is noted and ends its part in the row."""
    if entrant.error:
        return None
    try:
        with entrant.fleet.awake():
            return work()
    except ChildFailed as failure:
        entrant.error = str(failure)
        return None


def _calibrate(row: Row, entrants: Sequence[Entrant], settings: Settings) -> None:
    """Chooses the number of operations of a turn.

    If parameters change, all sides take the same number of steps, between the numbers that the fastest and the slowest
    can take in a turn. Other work is repeated until its time is over. A steady row says its number of steps itself.
    """
    if row.steps:
        for entrant in entrants:
            entrant.count = max(2, round(row.steps * settings.pace))
        return
    estimates: dict[str, float] = {}
    for entrant in entrants:
        _awake(entrant, lambda entrant=entrant: _turn(entrant, 1))
        seconds = _awake(entrant, lambda entrant=entrant: _turn(entrant, 3))
        if seconds is not None:
            estimates[entrant.column] = seconds * entrant.row.shape.trainers
    if not estimates:
        return
    between = math.sqrt(min(estimates.values()) * max(estimates.values()))
    for entrant in entrants:
        if row.stateful:
            entrant.count = max(2, round(row.seconds * settings.pace / between))
        else:
            stretch = row.seconds * settings.pace / 20
            entrant.count = max(1, round(stretch / estimates.get(entrant.column, between)))


def _warm_turn(entrant: Entrant, settings: Settings) -> float:
    # A process that was stopped has cold caches and timers.
    if entrant.row.stateful:
        _turn(entrant, max(1, entrant.count // (8 if entrant.row.steps else 10)))
        return _turn(entrant, entrant.count)
    seconds = entrant.row.seconds * settings.pace
    _turn(entrant, entrant.count, seconds / 10)
    return _turn(entrant, entrant.count, seconds)


def _turn(entrant: Entrant, count: int, seconds: float = 0.0) -> float:
    """One turn; returns seconds per operation, those of all trainers taken together.

    Args:
        entrant: The side.
        count: Operations of each trainer per repetition.
        seconds: Time of the repetitions.
    """
    trainers = entrant.row.shape.trainers
    # Plain torch takes the steps of all trainers, in one process.
    each = count * trainers // entrant.fleet.trainers
    answers = entrant.fleet.ask(do="turn", row=entrant.row.name, count=each, seconds=seconds)
    done = sum(answer["count"] for answer in answers)
    entrant.done.append(done)
    if len(answers) == 1:
        return float(answers[0]["seconds"]) / done
    window = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
    return float(window) / done


def _compare(entrants: Sequence[Entrant], scratch: Path) -> None:
    """Compares the results of every side with those of local torch; a difference is an error."""
    results: dict[str, dict[str, Tensor]] = {}
    for entrant in entrants:
        result = _awake(entrant, lambda entrant=entrant: _result(entrant, scratch))
        if result is not None:
            results[entrant.column] = result
    for entrant in entrants:
        expected = results.get(entrant.column if entrant.fleet.side == LOCAL else _reference(entrant))
        if not entrant.row.local or entrant.error:
            continue
        if not expected:
            entrant.error = "there is no result of local torch to compare with"
        else:
            if lost := int(results[entrant.column].pop(LOST, torch.tensor(0)).sum()):
                entrant.lost = f"{lost} of {lost + len(results[entrant.column]['losses'])} passes lost"
            # A side that draws other random numbers for its dropout gives losses only.
            if entrant.row.racing or results[entrant.column].keys() == {"losses"}:
                entrant.error = loss_difference(
                    results[entrant.column]["losses"], expected["losses"], entrant.row.tolerance
                )
            else:
                entrant.error = difference(results[entrant.column], expected)


def _reference(entrant: Entrant) -> str:
    return LOCAL + entrant.column.removeprefix(entrant.fleet.side)


def _result(entrant: Entrant, scratch: Path) -> dict[str, Tensor]:
    paths = [scratch / f"{entrant.column}-{number}.pt" for number in range(entrant.fleet.trainers)]
    entrant.fleet.ask_each([{"do": "result", "row": entrant.row.name, "path": str(path)} for path in paths])
    parts: list[dict[str, Any]] = [torch.load(path, weights_only=True) for path in paths]
    for path in paths:
        path.unlink()
    merged = {key: value for part in parts for key, value in part.items()}
    if "losses" in merged:
        # Local torch took the trainers' steps in turn.
        merged["losses"] = torch.stack([part["losses"] for part in parts], dim=1).flatten()
    if LOST in merged:
        merged[LOST] = torch.stack([part[LOST] for part in parts])
    return merged


def loss_difference(found: Tensor, expected: Tensor, tolerance: float = 0.05) -> str:
    """Tells whether several trainers whose steps race have learned less than local torch; empty if they have not.

    The means of the last tenth are compared: single losses depend on the order. They may be lower than those of local
    torch: `DistributedOptimizer` has an accumulator per trainer, which makes its steps larger.
    """
    last = max(1, len(expected) // 10)
    if len(found) != len(expected):
        return f"wrong result: {len(found)} losses instead of {len(expected)}"
    here, there = float(found[-last:].mean()), float(expected[-last:].mean())
    if not here <= there + tolerance * float(expected[0]):
        return f"wrong result: the last losses are {here:.4g} on average, those of local torch {there:.4g}"
    return ""


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> str:
    """Describes a difference from local torch; empty if there is none."""
    if found.keys() != expected.keys():
        return f"wrong result: {sorted(found)} instead of {sorted(expected)}"
    for key, value in expected.items():
        if found[key].shape != value.shape:
            return f"wrong result: {key} has shape {tuple(found[key].shape)}, local torch {tuple(value.shape)}"
        if not torch.allclose(found[key], value, RTOL, ATOL):
            return f"wrong result: {key} differs from local torch by up to {(found[key] - value).abs().max():.2g}"
    return ""
