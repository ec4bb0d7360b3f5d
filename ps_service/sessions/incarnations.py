"""The incarnations of an owner: its starts whose sessions are valid."""

from __future__ import annotations

import os
from typing import Final


class Incarnations:
    """This start of an owner, named by a random id, and earlier ones whose state it continues.

    `x in incarnations` says whether the state that a trainer built in incarnation `x` still exists.
    """

    def __init__(self) -> None:
        self.current: Final = os.urandom(8).hex()
        self._earlier: tuple[str, ...] = ()

    @property
    def earlier(self) -> tuple[str, ...]:
        """Earlier incarnations whose state was restored, newest first; the sessions of their trainers stay valid."""
        return self._earlier

    def continue_from(self, earlier: tuple[str, ...]) -> None:
        """Sets the earlier incarnations whose state was restored, newest first."""
        self._earlier = earlier

    def __contains__(self, incarnation: str) -> bool:
        return incarnation == self.current or incarnation in self._earlier
