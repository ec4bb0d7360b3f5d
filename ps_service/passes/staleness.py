"""Counts the steps of each optimizer, and how stale their gradients were.

A pass reads a parameter, and some time later its step writes to it. Its staleness is the number of steps that other
passes have applied to the parameter in between, which is what asynchronous training is judged by.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from torch.nn import Parameter

from ps_service.measures.histogram import Distribution, Histogram

if TYPE_CHECKING:
    from ps_service.parameters.state import ParameterState
    from ps_service.passes.leaf import Leaf

STALENESS_BOUNDS: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Buckets of staleness, in steps."""

MOST_NAMES: Final = 64
"""Optimizers that are counted by name, of all that an owner has had; the others are counted together."""

LONGEST_NAME: Final = 128
"""Characters of a name that is counted as such."""

OTHERS: Final = "(others)"
"""What is counted together: anonymous optimizers, and those with too long a name or that came after `MOST_NAMES`."""


class FirstReadings:
    """How many steps each parameter had had when a pass first read it. Not safe from several threads."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}

    def note(self, leaves: Iterable[Leaf]) -> None:
        """A recorded call of the pass has read these; calls may come here in another order than they read."""
        steps = self._steps
        for leaf in leaves:
            key = id(leaf.parameter)
            known = steps.get(key)
            if known is None or leaf.steps < known:
                steps[key] = leaf.steps

    def stepped(self, parameters: Sequence[Parameter], parameter_states: Sequence[ParameterState]) -> int | None:
        """The pass has written to parameters, whose parameter states do not count that step yet.

        Returns:
            The largest staleness among them; None if the pass has read none of them through a hosted module.
        """
        worst = None
        for parameter, parameter_state in zip(parameters, parameter_states, strict=True):
            first = self._steps.get(id(parameter))
            if first is not None:
                worst = max(worst or 0, parameter_state.steps - first)
                # Its own steps do not make it stale.
                self._steps[id(parameter)] = first + 1
        return worst


@dataclass(frozen=True, slots=True)
class StepCount:
    """The steps of one optimizer, or of several that are counted together.

    Attributes:
        steps: How many were applied since the owner started.
        staleness: Of those whose pass had read the parameters on this owner.
    """

    steps: int
    staleness: Distribution


class StepCounter:
    """Counts steps. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = 0
        self._staleness = Histogram(STALENESS_BOUNDS)

    def count(self, staleness: int | None) -> None:
        """One more step was applied."""
        with self._lock:
            self._steps += 1
            if staleness is not None:
                self._staleness.observe(staleness)

    def snapshot(self) -> StepCount:
        """What has been counted so far."""
        with self._lock:
            return StepCount(self._steps, self._staleness.snapshot())


class StepCounters:
    """The step counters of an owner, by name of the optimizer; they stay when optimizers go, so that none goes back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = {OTHERS: StepCounter()}

    def of(self, name: str) -> StepCounter:
        """Where the steps of an optimizer are counted.

        Args:
            name: Its name; empty for an anonymous one.
        """
        with self._lock:
            found = self._counters.get(name)
            if found is None:
                if not name or len(name) > LONGEST_NAME or len(self._counters) > MOST_NAMES:
                    return self._counters[OTHERS]
                found = self._counters[name] = StepCounter()
            return found

    def has(self, name: str) -> bool:
        """Whether the steps of an optimizer are counted by its name."""
        return name != OTHERS and name in self._counters

    def snapshot(self) -> dict[str, StepCount]:
        """What has been counted so far, by name."""
        with self._lock:
            counters = dict(self._counters)
        return {name: counter.snapshot() for name, counter in counters.items()}
