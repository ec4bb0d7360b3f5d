"""What communicators ask about the trainers of an owner."""

from __future__ import annotations

from typing import Protocol


class Trainer(Protocol):
    """A trainer with a session.

    Attributes:
        transport: How its requests arrive.
    """

    transport: str

    def idle_seconds(self) -> float:
        """Seconds without an open connection; 0 while there is one."""


class Trainers(Protocol):
    """The trainers of an owner."""

    def get(self, trainer: bytes) -> Trainer | None:
        """A trainer, if its session has not ended."""

    def describe(self, trainer: bytes) -> str:
        """A trainer for messages."""
