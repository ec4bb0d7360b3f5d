"""Members of a group, as its directory knows them, and how those left that have gone."""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

_REMEMBERED: Final = 4096
"""Most members to remember after they have left."""


class MemberEntry(NamedTuple):
    """One member. `is_owner` says that it serves trainers, and is no program that has joined by itself."""

    name: str
    address: str
    id: int
    session: bytes
    is_owner: bool = False

    def __str__(self) -> str:
        return f"{self.name!r} (rank {self.id})"


class Departure(NamedTuple):
    """When a member left, in the order of all that came and went; it is lost if its session ended without a word."""

    moment: int
    lost: bool


class Departures:
    """The order in which members came and left. The lock of the directory guards it."""

    def __init__(self) -> None:
        self._moments = itertools.count()
        self._came: dict[str, int] = {}
        self._left: dict[str, Departure] = {}

    def came(self, name: str) -> None:
        """A member has entered the directory."""
        self._came[name] = next(self._moments)
        self._left.pop(name, None)

    def left(self, name: str, lost: bool) -> None:
        """A member has left it."""
        self._came.pop(name, None)
        self._left[name] = Departure(next(self._moments), lost)
        if len(self._left) > _REMEMBERED:
            del self._left[next(iter(self._left))]

    def of(self, name: str, seen_by: str) -> Departure | None:
        """How a member left while another was there; None if it did not. A former run of a program does not count."""
        departure, since = self._left.get(name), self._came.get(seen_by)
        return departure if departure is not None and since is not None and departure.moment > since else None
