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
        # Newest first. The sessions of their trainers stay valid.
        self.earlier: tuple[str, ...] = ()

    def __contains__(self, incarnation: str) -> bool:
        return incarnation == self.current or incarnation in self.earlier
