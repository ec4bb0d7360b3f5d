"""Counts the readers, the saving graphs and the writes of each parameter."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Final, Protocol
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class Turns(Protocol):
    """The turns of the calls on a module itself, as steps see them. `claimed` is the number of steps that are about to
    write to parameters of the module or write now, and `writing` of those that do."""

    claimed: int
    writing: int

    def await_calls(self, that_write: bool = False) -> bool:
        """Waits for the call on the module itself, or only for one that writes to parameters. Returns whether it has
        waited, so that other calls may have begun. The lock of the parameters is held."""


class Readers(Protocol):
    """The calls of a module: those on views, and the one on the module itself. They read parameters without pins."""

    turns: Turns

    @property
    def running(self) -> int:
        """Number of calls that run; the one on the module itself does not count in its own thread."""

    def is_used(self) -> bool:
        """Whether a parameter may be needed by a call that runs, by an open graph or by other code."""

    def saved(self) -> set[int]:
        """`id()` of the states of parameters that are needed besides by calls that run."""

    def note_moved(self) -> None:
        """Notes that parameters may have moved, or were frozen."""

    def note_written(self, state: ParameterState) -> None:
        """Notes that hosted code has written to a parameter: graphs that have saved it must not use it."""


class Follower(Protocol):
    """Is told when a parameter has other values."""

    def keep(self, state: ParameterState) -> None:
        """The parameter of a state has other values, and nobody writes to it now."""


class Pin:
    """Counts the users of one storage of a parameter. `reading` is the number of running reads, and `written` counts
    the in-place writes by hosted code outside of steps. What an open graph keeps of the storage refers to the `token`,
    so that it counts until the graph is freed."""

    __slots__ = ("reading", "token", "written")

    def __init__(self) -> None:
        self.reading = 0
        self.written = 0
        self.token = object()

    @property
    def saved(self) -> int:
        """Number of tensors that open graphs keep of it."""
        return sys.getrefcount(self.token) - UNSAVED


_pin = Pin()
UNSAVED: Final = sys.getrefcount(_pin.token)
"""References to the token of a pin that no graph has saved, while they are counted."""


class ParameterState:
    """The readers and writers of one parameter.

    It is `stepped` while an optimizer uses its `.grad`, `claimed` while a consistent step is about to write (it waits
    for present readers, and new ones wait for it), and `writing` once that has begun to. `steps` counts the steps that
    were applied to it, `writes` the calls that have written to it where it is, as their own code did, and `changes` all
    other writes, also those by steps. Its marks count from `first_mark`. `readers` are the calls of the modules that
    have it, and `followers` those that are told of its values.
    """

    __slots__ = (
        *("changes", "claimed", "first_mark", "followers", "of_module", "pin", "readers", "stepped"),
        *("steps", "visible", "writes", "writing"),
    )

    def __init__(self) -> None:
        self.pin = Pin()
        self.stepped = self.claimed = self.writing = self.of_module = False
        self.steps = self.changes = self.writes = 0
        # Another one for a parameter that takes its place, and after a restart of the owner: who has marks from before
        # compares them with those of the parameter of the same name.
        self.first_mark = secrets.randbits(63) + 1
        self.readers: list[ref[Readers]] = []
        self.followers: tuple[ref[Follower], ...] = ()
        # What others than a call read while that has the parameter with memory of its own. Set under the lock.
        self.visible: torch.Tensor | None = None

    def visible_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """A tensor with the memory of the parameter that others than a call on its module may read."""
        return parameter if self.visible is None else self.visible

    def follow(self, follower: Follower) -> None:
        """Tells somebody of its values from now on, as long as that is there."""
        self.followers = (*(each for each in self.followers if each() is not None), ref(follower))

    def tell(self) -> None:
        """Tells its followers that it has other values."""
        for each in self.followers:
            if (follower := each()) is not None:
                follower.keep(self)

    def rewritten(self) -> None:
        """Notes that something else than a step has written to it. If it is followed, that counts as one, so that
        whoever has read it before has not read the same as those who read it now."""
        if any(each() is not None for each in self.followers):
            self.steps += 1
            self.tell()


def readers_of(states: Iterable[ParameterState]) -> set[Readers]:
    """The calls of the modules that have some parameters."""
    found = set()
    for state in states:
        for each in state.readers:
            if (readers := each()) is not None:
                found.add(readers)
    return found
