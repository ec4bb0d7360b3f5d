"""A parameter locks under watch: parameters, and a view of who waits for them."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch.nn import Parameter

from ps_service.parameters.locks import COPY_AT_MOST, ParameterLocks, Reading
from ps_service.parameters.state import ParameterState, Pin
from tests.ps_service.threads import Watched


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class Watch:
    """A parameter locks, some parameters, and a view of who waits."""

    def __init__(self, *sizes: int) -> None:
        self.parameter_locks = ParameterLocks()
        self.clock = Clock()
        self.changed = self.parameter_locks.changed = Watched(self.parameter_locks.lock)
        self.parameters = [Parameter(torch.zeros(size)) for size in sizes]
        self._saved: list[object] = []
        self.states = [self.parameter_locks.state(parameter) for parameter in self.parameters]

    def save(self, pin: Pin) -> None:
        """An open graph saves a storage."""
        self._saved.append(pin.token)

    def free(self, pin: Pin) -> None:
        """A graph that has saved the storage is freed."""
        self._saved.remove(pin.token)

    def reading(self, *which: int, nested: bool = False) -> AbstractContextManager[Reading]:
        return self.parameter_locks.reading(*self._chosen(which), nested)

    def writing(self, *which: int, consistent: bool = True) -> AbstractContextManager[None]:
        return self.parameter_locks.writing(*self._chosen(which), consistent)

    def _chosen(self, which: tuple[int, ...]) -> tuple[list[Parameter], list[ParameterState]]:
        chosen = which or range(len(self.parameters))
        return [self.parameters[i] for i in chosen], [self.states[i] for i in chosen]

    def step(self, *which: int, consistent: bool = True) -> None:
        """Adds one to every number."""
        with self.writing(*which, consistent=consistent), torch.no_grad():
            for i in which or range(len(self.parameters)):
                self.parameters[i] += 1

    @property
    def places(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self.parameters]


LARGE = COPY_AT_MOST // 4 + 1
"""One number more than what is copied while it is read."""


def sum_of_leaves(watch: Watch, *which: int, nested: bool = False) -> float:
    with watch.reading(*which, nested=nested) as reading:
        return sum(leaf.detach().sum().item() for leaf in reading.leaves)
