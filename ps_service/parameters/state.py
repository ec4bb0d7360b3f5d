"""Counts the readers, the saving graphs and the writes of each parameter."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable
    from weakref import ref

    import torch


class Writers:
    """The number of steps that are about to write to the parameters of a module, and of those that do."""

    __slots__ = ("claimed", "writing")

    def __init__(self) -> None:
        self.claimed = self.writing = 0


class Readers(Protocol):
    """The calls of a module: those on views, and the one on the module itself. They read parameters without pins."""

    writers: Writers

    @property
    def running(self) -> int:
        """Number of calls that run."""

    def await_calls(self) -> bool:
        """Waits for a call on the module itself, which must not see the step; the lock of the parameters is held.

        Returns whether it has waited, so that other calls may have begun.
        """

    def await_writer(self) -> None:
        """Waits for such a call if it writes to parameters; the lock of the parameters is held."""

    def is_used(self) -> bool:
        """Whether a parameter may be needed by a call that runs, by an open graph or by other code."""

    def saved(self) -> set[int]:
        """`id()` of the states of parameters that are needed besides by calls that run."""

    def note_moved(self) -> None:
        """Notes that parameters may have moved, or were frozen."""

    def note_written(self, state: ParameterState) -> None:
        """Notes that hosted code has written to a parameter: graphs that have saved it must not use it."""


class Pin:
    """Counts the users of one storage of a parameter.

    `reading` is the number of running reads, and `written` counts the in-place writes by hosted code outside of steps.
    What an open graph keeps of the storage refers to the `token`, so that it counts until the graph is freed.
    """

    __slots__ = ("reading", "token", "written")

    def __init__(self) -> None:
        self.reading = 0
        self.written = 0
        self.token = object()

    @property
    def saved(self) -> int:
        """Number of tensors that open graphs keep of it."""
        return sys.getrefcount(self.token) - UNSAVED


def _unsaved() -> int:
    pin = Pin()
    return sys.getrefcount(pin.token)


UNSAVED: Final = _unsaved()
"""References to the token of a pin that no graph has saved, while they are counted."""


class ParameterState:
    """The readers and writers of one parameter.

    Attributes:
        pin: The users of the parameter's current storage.
        stepped: Whether an optimizer is using the parameter's `.grad`.
        claimed: Whether a consistent step is about to write: it waits for present readers, and new readers wait for it.
        writing: Whether that step has begun to write.
        steps: Number of steps applied to it.
        changes: Number of writes to it, by steps and by anything else, except those that `writes` counts.
        writes: Number of calls that have written to it where it is, as their own code did.
        of_module: Whether it is a parameter of a hosted module.
        readers: The calls of the modules that have it.
        visible: What others than a call read while that has the parameter with memory of its own; otherwise None. It is
            set under the lock of the parameters.
    """

    __slots__ = (
        *("changes", "claimed", "of_module", "pin", "readers", "stepped"),
        *("steps", "visible", "writes", "writing"),
    )

    def __init__(self) -> None:
        self.pin = Pin()
        self.stepped = self.claimed = self.writing = self.of_module = False
        self.steps = self.changes = self.writes = 0
        self.readers: list[ref[Readers]] = []
        self.visible: torch.Tensor | None = None

    def visible_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """A tensor with the memory of the parameter that others than a call on its module may read."""
        return parameter if self.visible is None else self.visible


def readers_of(states: Iterable[ParameterState]) -> set[Readers]:
    """The calls of the modules that have some parameters."""
    found = set()
    for state in states:
        for each in state.readers:
            readers = each()
            if readers is not None:
                found.add(readers)
    return found
