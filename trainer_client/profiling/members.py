"""How processes are named and numbered in profiles."""

from __future__ import annotations

from typing import Final, Protocol

NO_NUMBER: Final = -1
"""The number of a process that is in no group, as in torch."""


class Members(Protocol):
    """Name and number of this process, and numbers of the owners that it calls."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    def number_of(self, owner: str) -> int: ...


class Numbered:
    """Numbers owners in the order in which they are first called, for a process that is in no group."""

    name = "trainer"
    number = NO_NUMBER

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number_of(self, owner: str) -> int:
        """Number of an owner, from 0."""
        return self._numbers.setdefault(owner, len(self._numbers))
