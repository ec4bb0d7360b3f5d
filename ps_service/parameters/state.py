"""What an owner knows of one parameter: who reads it, who has saved it, and how often it was written to."""

from __future__ import annotations


class Pin:
    """Counts who still needs one storage of a parameter.

    Attributes:
        reading: Forwards that run.
        written: How often code has written to the storage although it was not its own.
    """

    __slots__ = ("_saves", "reading", "written")

    def __init__(self) -> None:
        self.reading = 0
        self.written = 0
        # A list, because its `append` and `pop` are atomic: see `ParameterLocks.free`.
        self._saves: list[None] = []

    @property
    def saved(self) -> int:
        """How many open graphs have saved it."""
        return len(self._saves)


class ParameterState:
    """The reading and writing of one parameter.

    Attributes:
        pin: Who needs the storage that the parameter has now.
        stepped: Whether an optimizer has the parameter's `.grad`.
        claimed: Whether a consistent step will write next: it waits for calls that read already, and lets in no other.
        writing: Whether that step has begun to write.
        steps: How many steps have been applied to it.
        changes: How often it has been written to, by steps and by all else.
    """

    __slots__ = ("changes", "claimed", "pin", "stepped", "steps", "writing")

    def __init__(self) -> None:
        self.pin = Pin()
        self.stepped = False
        self.claimed = False
        self.writing = False
        self.steps = 0
        self.changes = 0
