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


class Arrival(NamedTuple):
    """An arrival of a member: the session that it came from, and its number there. It keeps it when it asks again."""

    session: bytes
    number: int = 0


class Presence(NamedTuple):
    """Where another member is, as one that waits for it sees it: whether it is there, or left since that one came."""

    entered: bool
    away: bool = False
    departure: Departure | None = None


class Rendezvous:
    """One rendezvous: members wait until all have arrived. It fails when one that is missing leaves or is lost.

    In one for members that leave, one that has left is not missing. `presence(name, seen_by)` tells where one is.
    """

    def __init__(
        self, key: str, names: tuple[str, ...], leaving: bool, presence: Callable[[str, str], Presence]
    ) -> None:
        self.key = key
        self.names = names
        self._arrivals: dict[str, Arrival] = {}
        self.values: dict[str, Any] = {}
        self._leaving = leaving
        self._presence = presence
        self._departed: set[str] = set()

    def has(self, name: str, arrival: Arrival) -> bool:
        """Whether this is the arrival of a member here."""
        return self._arrivals.get(name) == arrival

    def takes(self, name: str, arrival: Arrival) -> bool:
        """Whether a member that has not arrived can arrive. It takes the place of what an earlier run of it left."""
        known = self._arrivals.get(name)
        return not self.complete and (known is None or known.session != arrival.session)

    def arrive(self, name: str, arrival: Arrival, value: Any) -> None:
        """A member arrives; or it asks again, with `SAME`, and is still missing if its value is not known."""
        if value is not SAME:
            self.values[name] = value
        elif not self.has(name, arrival):
            self.values.pop(name, None)  # it is that of an earlier run
        self._arrivals[name] = arrival
        self._departed.discard(name)

    def lose(self, session: bytes) -> None:
        """A session has ended. Its member has to arrive again, unless all had arrived."""
        for name, arrival in list(self._arrivals.items()):
            if arrival.session == session:
                self.depart(name, arrival)
                self._remove(name, arrival)

    def supersede(self, name: str, session: bytes) -> None:
        """This session is the member's now. What an earlier process has brought counts only if all had arrived."""
        arrival = self._arrivals.get(name)
        if arrival is not None and arrival.session != session:
            self.fail(name, arrival)

    def depart(self, name: str, arrival: Arrival) -> None:
        """A member does not wait any longer."""
        if self.has(name, arrival):
            self._departed.add(name)

    def fail(self, name: str, arrival: Arrival) -> None:
        """A member got an error and does not wait any longer. It has to arrive again."""
        self.depart(name, arrival)
        self._remove(name, arrival)

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

    def withdraw(self, name: str, arrival: Arrival) -> RendezvousResult:
        """Removes a member whose time is over; it has to arrive again."""
        result = self.look(name)
        self._remove(name, arrival)
        return result

    def _remove(self, name: str, arrival: Arrival) -> None:
        if self.has(name, arrival) and not self.complete:
            del self._arrivals[name]
            self.values.pop(name, None)

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
