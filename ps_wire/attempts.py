"""Attempts of a pass or a push that is made again: each optimizer applies each of its steps once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

Applied = dict[Hashable, dict[int, int]]
"""The steps of a pass that were applied, in any attempt: by optimizer, the versions that they have led to, by their
places among its steps; 0 is not known."""

REPEATED: Final = "repeated"
"""What an owner says of gradients that do not count because another attempt has."""

_MOST_STEPS: Final = 1024
"""The most steps of one optimizer in a pass that are remembered."""


class Attempt:
    """One attempt; all attempts of a pass share the steps that were applied.

    Whoever steps an optimizer has it alone while it asks and tells. `of` has the trainer and the number of the run, if
    that is known.
    """

    def __init__(self, applied: Applied, of: tuple[bytes, int] | None = None) -> None:
        self.of: Final = of
        self._applied: Final = applied
        self._places: Final[dict[Hashable, int]] = {}
        self._left_out: Final[dict[Hashable, int]] = {}

    def was_applied(self, optimizer: Hashable) -> bool:
        """Whether another attempt has applied what is the next step of an optimizer in this one."""
        return self._places.get(optimizer, 0) in self._applied.get(optimizer, ())

    def was_applied_elsewhere(self, optimizer: Hashable) -> None:
        """What is the next step of an optimizer was applied by others, before its parameters came from these."""
        self._applied.setdefault(optimizer, {})[self._places.get(optimizer, 0)] = 0

    def place_of(self, optimizer: Hashable) -> int:
        """The place of the next step of an optimizer among its steps in this attempt."""
        return self._places.get(optimizer, 0)

    def was_left_out(self, optimizer: Hashable) -> bool:
        """Whether the latest step of an optimizer in this attempt was not made, because another attempt has made it."""
        return optimizer in self._left_out

    def is_beside(self, other: Attempt | None) -> bool:
        """Whether another one is an attempt of the same pass."""
        return other is not None and other is not self and other._applied is self._applied

    def version_of(self, optimizer: Hashable, present: int) -> int:
        """The version that the latest step of an optimizer has led to, in whatever attempt it was made. It is the
        present one if that is not known, or if the round of the step is still open."""
        return min(self._left_out.get(optimizer) or present, present)

    def passed(self, optimizer: Hashable, applied: bool, version: int = 0) -> None:
        """A step of an optimizer is over; `applied` says whether it has changed something in this attempt, and
        `version` what that has led to."""
        place = self._places.get(optimizer, 0)
        self._places[optimizer] = place + 1
        self._left_out.pop(optimizer, None)
        if self._applied.get(optimizer, {}).get(place) is not None:
            self._left_out[optimizer] = self._applied[optimizer][place]
        elif applied and place < _MOST_STEPS:
            self._applied.setdefault(optimizer, {})[place] = version
