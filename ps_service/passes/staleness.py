"""Counts the steps of each optimizer, and how stale their gradients were.

A pass reads a parameter, and some time later its step writes to it. The staleness of the step is the number of steps
that other passes have applied to the parameter in between. It is the usual measure of asynchronous training.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ps_service.measures.histogram import Distribution, Histogram

if TYPE_CHECKING:
    import torch

    from ps_service.parameters.state import ParameterState

STALENESS_BOUNDS: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Buckets of staleness, in steps."""

MOST_NAMES: Final = 64
"""Most optimizers that are counted by name since the start of an owner; the others are counted together."""

LONGEST_NAME: Final = 128
"""Longest name that is counted by itself, in characters."""

OTHERS: Final = "(others)"
"""The label of anonymous optimizers, of those with too long a name, and of those after `MOST_NAMES`."""


class FirstReadings:
    """The number of steps of each parameter when a pass first read it. Not safe from several threads."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}

    def note(self, parameters: Iterable[torch.Tensor], steps: Iterable[int]) -> None:
        """Notes parameters that a recorded call or a replica has read, and how many steps had been applied to each when
        it began. Calls may be noted in another order than they read."""
        known = self._steps
        for parameter, count in zip(parameters, steps, strict=True):
            key = id(parameter)
            first = known.get(key)
            if first is None or count < first:
                known[key] = count

    def of_each(self, parameters: Sequence[torch.Tensor]) -> list[int | None]:
        """The number of steps of each parameter when the pass first read it; steps of the pass itself are added. None
        for those that it has not read through a hosted module."""
        return [self._steps.get(id(each)) for each in parameters]

    def staleness(
        self, parameters: Sequence[torch.Tensor], parameter_states: Sequence[ParameterState], counts: int = 0
    ) -> int | None:
        """The largest staleness of these parameters; None if the pass has read none of them through a hosted module. A
        step of the pass itself `counts` one, which does not make it stale; the states do not count it yet."""
        worst = None
        for parameter, parameter_state in zip(parameters, parameter_states, strict=True):
            first = self._steps.get(id(parameter))
            if first is not None:
                worst = max(worst or 0, parameter_state.steps - first)
                self._steps[id(parameter)] = first + counts
        return worst

    def stepped(self, parameters: Sequence[torch.Tensor], parameter_states: Sequence[ParameterState]) -> int | None:
        """Notes a step of the pass, and returns `staleness`."""
        return self.staleness(parameters, parameter_states, counts=1)


@dataclass(frozen=True, slots=True)
class StepCount:
    """The steps of one optimizer, or of several that are counted together, since the owner started. The staleness is
    that of steps whose pass had read the parameters on this owner."""

    steps: int
    staleness: Distribution


class StepCounter:
    """Counts steps. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = 0
        self._staleness = Histogram(STALENESS_BOUNDS)

    def count(self, staleness: int | None) -> None:
        """Counts one step."""
        with self._lock:
            self._steps += 1
            if staleness is not None:
                self._staleness.observe(staleness)

    def snapshot(self) -> StepCount:
        """The counts so far."""
        with self._lock:
            return StepCount(self._steps, self._staleness.snapshot())


class StepCounters:
    """The step counters of an owner, by name of the optimizer. They stay when optimizers are deleted, because a counter
    must not decrease."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = {OTHERS: StepCounter()}

    def of(self, name: str) -> StepCounter:
        """The counter for the steps of an optimizer, whose name is empty if it is anonymous."""
        with self._lock:
            found = self._counters.get(name)
            if found is None:
                if not name or len(name) > LONGEST_NAME or len(self._counters) > MOST_NAMES:
                    return self._counters[OTHERS]
                found = self._counters[name] = StepCounter()
            return found

    def has(self, name: str) -> bool:
        """Whether the steps of an optimizer are counted under its own name."""
        return name != OTHERS and name in self._counters

    def snapshot(self) -> dict[str, StepCount]:
        """The counts so far, by name."""
        with self._lock:
            counters = dict(self._counters)
        return {name: counter.snapshot() for name, counter in counters.items()}
