"""What trainers tell the harness of what they do: lines on a pipe, so that what was told outlives the trainer.

An action is begun before its first request is sent, and done when its last answer is there. One that was begun and not
done when its trainer was killed is in doubt: it may have been applied or not.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any


class Violation(Exception):
    """The owners have not kept what they promise."""


@dataclass
class Action:
    """An action of a trainer.

    Attributes:
        slot: Which trainer.
        workload: The name of the workload that it belongs to.
        what: What is done, as the workload has told.
        result: What came of it; None while it is not done.
        attempts: How often a pass was begun for it.
        done_at: When it was done, in seconds of `time.monotonic`.
    """

    slot: int
    workload: str
    what: dict[str, Any]
    result: dict[str, Any] | None = None
    attempts: int = 0
    done_at: float = field(default=float("inf"))

    @property
    def is_done(self) -> bool:
        """Whether it was acknowledged."""
        return self.result is not None


class Teller:
    """Tells of the actions of one trainer."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._number = 0

    def tell(self, **line: Any) -> None:
        """Writes a line, whole or not at all."""
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")

    def begin(self, workload: str, **what: Any) -> int:
        """An action begins. Returns its number."""
        self._number += 1
        self.tell(begin=self._number, workload=workload, what=what)
        return self._number

    def attempt(self, number: int) -> None:
        """A pass is begun for an action."""
        self.tell(attempt=number)

    def done(self, number: int, **result: Any) -> None:
        """An action is acknowledged."""
        self.tell(done=number, result=result, at=time.monotonic())
