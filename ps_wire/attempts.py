"""Attempts of a pass that is run again when an owner has lost it: each optimizer applies each of its steps once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

Applied = dict[Hashable, set[int]]
"""The steps of a pass that were applied, in any attempt: by optimizer, their places among its steps."""

_MOST_STEPS: Final = 1024
"""The most steps of one optimizer in a pass that are remembered."""


class Attempt:
    """One attempt. Whoever steps an optimizer has it alone while it asks and tells.

    Args:
        applied: The steps that were applied, which all attempts of the pass share.
    """

    def __init__(self, applied: Applied) -> None:
        self._applied: Final = applied
        self._places: Final[dict[Hashable, int]] = {}

    def was_applied(self, optimizer: Hashable) -> bool:
        """Whether another attempt has applied what is the next step of an optimizer in this one."""
        return self._places.get(optimizer, 0) in self._applied.get(optimizer, ())

    def passed(self, optimizer: Hashable, applied: bool) -> None:
        """A step of an optimizer is over.

        Args:
            optimizer: The optimizer.
            applied: Whether it has changed something in this attempt.
        """
        place = self._places.get(optimizer, 0)
        self._places[optimizer] = place + 1
        if applied and place < _MOST_STEPS:
            self._applied.setdefault(optimizer, set()).add(place)
