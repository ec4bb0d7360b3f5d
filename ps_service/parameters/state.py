"""Counts the readers, the saving graphs and the writes of each parameter."""

from __future__ import annotations


class Pin:
    """Counts the users of one storage of a parameter.

    Attributes:
        reading: Number of running forwards that read it.
        written: Number of in-place writes by hosted code outside of steps.
    """

    __slots__ = ("_saves", "reading", "written")

    def __init__(self) -> None:
        self.reading = 0
        self.written = 0
        # A list, because its `append` and `pop` are atomic: see `ParameterLocks.free`.
        self._saves: list[None] = []

    @property
    def saved(self) -> int:
        """Number of open graphs that have saved it."""
        return len(self._saves)


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
        of_module: Whether it is a parameter of a hosted module, which calls read through leaves.
    """

    __slots__ = ("changes", "claimed", "of_module", "pin", "stepped", "steps", "writes", "writing")

    def __init__(self) -> None:
        self.pin = Pin()
        self.stepped = False
        self.claimed = False
        self.writing = False
        self.steps = 0
        self.changes = 0
        self.writes = 0
        self.of_module = False
