"""Gives a forward a consistent view of the parameters that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from ps_service.parameters.leaves import stand_in

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence
    from types import TracebackType

    import torch

    from ps_service.parameters.state import ParameterState, Pin


class _Locks(Protocol):
    """What readings need of the locks of parameters; see `ParameterLocks`."""

    lock: threading.RLock

    def await_step(self, states: Sequence[ParameterState], nested: bool) -> None:
        """Waits for a consistent step in progress. `lock` must be held."""

    def notify(self) -> None:
        """Wakes the threads that wait for a reader to end. `lock` must be held."""


class Reading:
    """Pins some parameters while its block runs; no consistent step lies between the pins.

    Entering waits for a consistent step in progress.

    Args:
        locks: Guards the parameters.
        parameters: The parameters that are read.
        states: Their parameter states.
        nested: Whether the same call has another reading open. A step may be waiting for that one, so this one waits
            only for steps that have begun to write.

    Attributes:
        leaves: A fresh autograd leaf on the storage of each parameter.
        pins: The pin of each parameter's storage.
        steps: Number of steps applied to each parameter.
        changes: Number of writes to each parameter.
    """

    __slots__ = ("_locks", "_nested", "_parameters", "_states", "changes", "leaves", "pins", "steps")

    leaves: list[torch.Tensor]
    pins: list[Pin]
    steps: list[int]
    changes: list[int]

    def __init__(
        self, locks: _Locks, parameters: Sequence[torch.Tensor], states: Sequence[ParameterState], nested: bool
    ) -> None:
        self._locks = locks
        self._parameters = parameters
        self._states = states
        self._nested = nested

    def __enter__(self) -> Self:
        states = self._states
        with self._locks.lock:
            for state in states:
                if state.claimed or state.writing:
                    self._locks.await_step(states, self._nested)
                    break
            self.pins, self.steps, self.changes = [], [], []
            for state in states:
                self.pins.append(state.pin)
                self.steps.append(state.steps)
                self.changes.append(state.changes)
            self.leaves = list(map(stand_in, self._parameters, states))
            for pin in self.pins:
                pin.reading += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._locks.lock:
            for pin in self.pins:
                pin.reading -= 1
            self._locks.notify()
