"""The numbers of a training loop: steps, their rate, staleness, and values such as the loss."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from trainer_client.session.stepped import Stepped

LATEST: Final = 20
"""Steps over which shown values are averaged."""

_FOR_RATE: Final = 100
"""Most steps over which their rate is an average."""


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers of one step.

    Attributes:
        step: Number of steps with this one, from 1.
        steps_per_second: Over the last 100 steps at most; 0 with the first.
        staleness: Steps of other trainers that the gradients had missed; None if the step was skipped.
        dropped: Steps so far whose gradients do not count.
        values: What the loop has reported with the step, as it has given it: numbers, or tensors of one element.
    """

    step: int
    steps_per_second: float
    staleness: int | None
    dropped: int
    values: Mapping[str, Any]


class Meter:
    """Collects the numbers of steps. Values are read only when they are shown, because that waits for a GPU."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=_FOR_RATE)
        self._staleness: deque[int] = deque(maxlen=LATEST)
        self._values: dict[str, deque[Any]] = {}
        self._steps = self._dropped = 0

    def step(self, stepped: Stepped | None, values: Mapping[str, Any]) -> StepNumbers:
        """Counts a step; its numbers."""
        self._steps += 1
        self._times.append(self._clock())
        staleness = None
        if stepped is not None:
            staleness = stepped.staleness
            self._staleness.append(staleness)
            self._dropped += bool(stepped.dropped)
        kept = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        for name, value in kept.items():
            self._values.setdefault(name, deque(maxlen=LATEST)).append(value)
        return StepNumbers(self._steps, self.steps_per_second, staleness, self._dropped, kept)

    @property
    def steps_per_second(self) -> float:
        """Over the last 100 steps at most."""
        times = self._times
        seconds = times[-1] - times[0] if len(times) > 1 else 0.0
        return (len(times) - 1) / seconds if seconds > 0 else 0.0

    def __str__(self) -> str:
        """The numbers in one line. Values and staleness are means of the last 20 steps."""
        if not self._steps:
            return ""
        parts = [f"{self.steps_per_second:.3g} steps/s"]
        parts += [f"{name} {_mean(values):.4g}" for name, values in self._values.items()]
        if self._staleness:
            parts.append(f"staleness {_mean(self._staleness):.3g}")
        if self._dropped:
            parts.append(f"{self._dropped:,} dropped")
        return ", ".join(parts)


def _mean(values: deque[Any]) -> float:
    return math.fsum(map(float, values)) / len(values)
