"""A clock that is set by hand."""

from __future__ import annotations


class Clock:
    """Time that passes when a test says so.

    Attributes:
        now: The time, in seconds.
    """

    def __init__(self) -> None:
        self.now = 1000.5

    def __call__(self) -> float:
        return self.now
