"""The report of a run, as a table and as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from examples.pipeline.measure import Machine, Measure
from examples.pipeline.settings import Settings


def bound(machine: Machine, settings: Settings) -> str:
    """What the figures can be on this machine, as it is now."""
    return (
        f"both halves at once compute {machine.speed_up:.2f} times as much as one; so {settings.micro_batches} "
        f"micro-batches can gain {machine.bound(settings.micro_batches):.2f} x at most (two idle cores: "
        f"{2 * settings.micro_batches / (settings.micro_batches + 1):.2f} x)"
    )


def table(measures: Sequence[Measure]) -> str:
    """A table with the medians for each number in flight, and their speed-up over the first."""
    lines = ["in flight   forward              step"]
    first = measures[0]
    for each in measures:
        forward = f"{each.forward:7.1f} ms  {first.forward / each.forward:4.2f} x"
        step = f"{each.step:7.1f} ms  {first.step / each.step:4.2f} x"
        lines.append(f"{each.in_flight:9}   {forward}   {step}")
    return "\n".join(lines)


def write(path: Path, settings: Settings, machine: Machine, measures: Sequence[Measure]) -> None:
    """Writes settings, medians, ratios and all measurements as JSON; makes the folder."""
    first = measures[0]
    chosen = {name: value for name, value in asdict(settings).items() if name != "out"}
    rows = [
        {
            "in_flight": each.in_flight,
            "forward_ms": each.forward,
            "forward_ratio": first.forward / each.forward,
            "step_ms": each.step,
            "step_ratio": first.step / each.step,
            "all": asdict(each),
        }
        for each in measures
    ]
    bound = machine.bound(settings.micro_batches)
    content = {"settings": chosen, "machine": {**asdict(machine), "bound": bound}, "measures": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
