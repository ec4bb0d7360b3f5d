"""Rendezvous between members of a group, and how those left that have gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ps_wire.errors import UnavailableError

SAME: Final[Any] = object()
"""The value of a member that asks again."""

_REMEMBERED: Final = 4096
"""Most members to remember after they have left."""


class RendezvousResult(NamedTuple):
    """The result of a rendezvous, or of a look at it. Those are absent who are missing and not in the directory."""

    missing: list[str]
    absent: list[str]
    values: dict[str, Any]


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


class Presence(NamedTuple):
    """Where another member is, as one that waits for it sees it: whether it is there, or left since that one came."""

    entered: bool
    away: bool = False
    departure: Departure | None = None


class Rendezvous:
    """One rendezvous: members wait until all have arrived. It fails when one that is missing leaves or is lost.

    In one for members that leave, one that has left is not missing. `presence(name, seen_by)` tells where one is.
    """

    def __init__(self, names: tuple[str, ...], leaving: bool, presence: Callable[[str, str], Presence]) -> None:
        self.names = names
        self.sessions: dict[str, bytes] = {}
        self.values: dict[str, Any] = {}
        self._leaving = leaving
        self._presence = presence
        self._departed: set[str] = set()

    def arrive(self, name: str, session: bytes, value: Any) -> None:
        """A member arrives; or it asks again, with `SAME`, and is still missing if its value is not known."""
        if value is not SAME:
            self.values[name] = value
        self.sessions[name] = session
        self._departed.discard(name)

    def lose(self, session: bytes) -> None:
        """A session has ended. Its member has to arrive again."""
        for name in [name for name, of in self.sessions.items() if of == session]:
            self.values.pop(name, None)
            self._departed.add(name)

    def depart(self, name: str) -> None:
        """A member does not wait any longer."""
        self._departed.add(name)

    @property
    def over(self) -> bool:
        """Whether all that have arrived have departed."""
        return self._departed >= self.values.keys()

    @property
    def complete(self) -> bool:
        """Whether all have arrived."""
        return self.values.keys() >= set(self.names)

    def result(self, name: str) -> RendezvousResult | None:
        """The result for a member; None while others are missing. Raises if one of those will not come."""
        missing = self._missing(name)
        for other, where in missing.items():
            if where.departure is not None:
                raise UnavailableError(
                    f"{other} was lost: its connection broke, and it did not come back"
                    if where.departure.lost
                    else f"{other} has left the group"
                )
        return None if missing else RendezvousResult([], [], self.values)

    def look(self, name: str) -> RendezvousResult:
        """Who is missing, for a member that waits on."""
        missing = self._missing(name)
        return RendezvousResult(
            [_described(other, where) for other, where in missing.items()],
            [other for other, where in missing.items() if not where.entered],
            {},
        )

    def withdraw(self, name: str) -> RendezvousResult:
        """Removes a member whose time is over; it has to arrive again."""
        result = self.look(name)
        self.values.pop(name, None)
        return result

    def _missing(self, name: str) -> dict[str, Presence]:
        found = {other: self._presence(other, name) for other in self.names if other not in self.values}
        return {
            other: where
            for other, where in found.items()
            if not (self._leaving and where.departure is not None and not where.departure.lost)
        }


def _described(name: str, where: Presence) -> str:
    if where.away:
        return f"{name} (its connection is broken)"
    return name if where.entered else f"{name} (it has not joined)"
