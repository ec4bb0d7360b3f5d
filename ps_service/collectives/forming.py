"""Communicators that do not have all of their members yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ps_wire.collectives import LONGEST_NAME, MOST_MEMBERS
from ps_wire.errors import InvalidArgumentError, NameConflictError
from ps_wire.status.parts import CommunicatorStatus

if TYPE_CHECKING:
    from ps_service.collectives.communicator import Wait


class Key(NamedTuple):
    """A membership: the session, and the number by which its trainer names it."""

    session: bytes
    member: int


@dataclass(eq=False)
class Joining:
    """A trainer that joins a communicator, and grants the others `patience` seconds without a connection."""

    key: Key
    name: str
    size: int
    rank: int | None
    patience: float
    wait: Wait
    future: Future[int] = field(default_factory=Future)


class Formations:
    """The trainers that have joined each communicator, in the order in which they came. Not safe from several threads.

    `is_lost` tells of a session whether it is without a connection for longer than some seconds.
    """

    def __init__(self, is_lost: Callable[[bytes, float], bool]) -> None:
        self._joined: dict[str, list[Joining]] = {}
        self._is_lost = is_lost

    def all(self) -> list[Joining]:
        """All trainers that wait for others."""
        return [each for joined in self._joined.values() for each in joined]

    def join(self, joining: Joining) -> list[Joining]:
        """A trainer joins; returns those that are lost, whose place it takes.

        Raises `InvalidArgumentError` if others gave another size, and `NameConflictError` if one of them has the rank.
        """
        joined, replaced = self._joined.get(joining.name, []), list[Joining]()
        if joined and joined[0].size != joining.size:
            raise InvalidArgumentError(
                f"the communicator {joining.name!r} is to have {joining.size} members here, and {joined[0].size} for "
                "those that have joined; all have to give the same size"
            )
        for other in joined:
            same = joining.rank is not None and other.rank == joining.rank
            full = len(joined) - len(replaced) >= joining.size
            if (same or full) and self._is_lost(other.key.session, other.patience):
                replaced.append(other)
            elif same:
                raise NameConflictError(
                    f"rank {joining.rank} of the communicator {joining.name!r} belongs to another trainer; give "
                    "another one, or none"
                )
        self._joined[joining.name] = [*(each for each in joined if each not in replaced), joining]
        return replaced

    def take_complete(self) -> list[tuple[str, list[Joining]]]:
        """Removes the communicators that have all members, with connections: their names, and the members by rank."""
        found = []
        for name, joined in list(self._joined.items()):
            size = joined[0].size
            first, rest = joined[:size], joined[size:]
            lost = any(self._is_lost(each.key.session, each.patience) for each in first)
            if len(first) == size and not lost:
                del self._joined[name]
                if rest:
                    self._joined[name] = rest
                found.append((name, _ranked(first)))
        return found

    def statuses(self) -> list[CommunicatorStatus]:
        """What the owner reports of them."""
        every = self._joined.items()
        return [CommunicatorStatus(name, joined[0].size, len(joined), 0, (), 0, "") for name, joined in every]

    def remove(self, key: Key) -> tuple[Joining, str] | None:
        """Removes a trainer that waits no more; returns it and what it has waited for, or None if it does not wait."""
        joining = next((each for each in self.all() if each.key == key), None)
        if joining is None:
            return None
        joined = self._joined[joining.name]
        given = sorted(each.rank for each in joined if each.rank is not None)
        ranks = f", among them the ranks {', '.join(map(str, given))}" if given else ""
        there = f"{len(joined)} of {joining.size} trainers have joined{ranks}"
        joined.remove(joining)
        if not joined:
            del self._joined[joining.name]
        return joining, f"the communicator {joining.name!r} is not complete: {there}"


def _ranked(joined: Sequence[Joining]) -> list[Joining]:
    """All members, by rank: those that have given none get the lowest that are free."""
    taken = {each.rank for each in joined}
    free = (rank for rank in range(len(joined)) if rank not in taken)
    by_rank = {next(free) if each.rank is None else each.rank: each for each in joined}
    return [by_rank[rank] for rank in range(len(joined))]


def check_join(name: str, size: int, rank: int | None) -> None:
    """Raises `InvalidArgumentError` if what a trainer asks for makes no sense."""
    if not 0 < len(name) <= LONGEST_NAME:
        raise InvalidArgumentError(f"the name of a communicator has 1 to {LONGEST_NAME} characters")
    if not 0 < size <= MOST_MEMBERS:
        raise InvalidArgumentError(f"a communicator has 1 to {MOST_MEMBERS:,} members, not {size}")
    if rank is not None and not 0 <= rank < size:
        raise InvalidArgumentError(f"the ranks of {size} members are 0 to {size - 1}, not {rank}")
