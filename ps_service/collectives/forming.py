"""Communicators that do not have all of their members yet."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from ps_service.collectives.communicator import ENDLESS, Wait
from ps_wire.collectives import LONGEST_NAME, MOST_MEMBERS
from ps_wire.errors import InvalidArgumentError, NameConflictError
from ps_wire.status.parts import CommunicatorStatus


class Joining:
    """A trainer that waits for the others, and grants them `patience` seconds without a connection."""

    def __init__(self, session: bytes, member: int, rank: int | None, patience: float, wait: Wait = ENDLESS) -> None:
        self.session = session
        self.member = member
        self.rank = rank
        self.patience = patience
        self.wait = wait
        self.future: Future[int] = Future()

    @property
    def key(self) -> tuple[bytes, int]:
        """The membership: its session, and the number by which it names itself."""
        return self.session, self.member


class Forming:
    """The trainers that have joined a communicator, in the order in which they came. Not safe from several threads."""

    def __init__(self, name: str, size: int, is_lost: Callable[[bytes, float], bool]) -> None:
        self.name = name
        self.size = size
        self.joined: list[Joining] = []
        self._is_lost = is_lost

    def join(self, joining: Joining) -> list[Joining]:
        """A trainer joins; returns those that are lost, whose place it takes. Raises if another has the rank."""
        replaced: list[Joining] = []
        for other in self.joined:
            same = joining.rank is not None and other.rank == joining.rank
            full = len(self.joined) - len(replaced) >= self.size
            if (same or full) and self._is_lost(other.session, other.patience):
                replaced.append(other)
            elif same:
                raise NameConflictError(
                    f"rank {joining.rank} of the communicator {self.name!r} belongs to another trainer; give "
                    "another one, or none"
                )
        self.joined = [each for each in self.joined if each not in replaced]
        self.joined.append(joining)
        return replaced

    def ranked(self) -> list[Joining] | None:
        """All members by rank; None while some are missing, or are without a connection."""
        if len(self.joined) < self.size:
            return None
        if any(self._is_lost(each.session, each.patience) for each in self.joined):
            return None
        taken = {each.rank for each in self.joined}
        free = (rank for rank in range(self.size) if rank not in taken)
        by_rank = {next(free) if each.rank is None else each.rank: each for each in self.joined}
        return [by_rank[rank] for rank in range(self.size)]

    def missing(self) -> str:
        """Who is missing, for messages."""
        given = sorted(each.rank for each in self.joined if each.rank is not None)
        ranks = f", among them the ranks {', '.join(map(str, given))}" if given else ""
        return f"{len(self.joined)} of {self.size} trainers have joined{ranks}"


class Formations:
    """The communicators that are not complete, and where each trainer waits. Not safe from several threads."""

    def __init__(self, is_lost: Callable[[bytes, float], bool]) -> None:
        self.by_member: dict[tuple[bytes, int], Forming] = {}
        self._by_name: dict[str, Forming] = {}
        self._is_lost = is_lost

    def join(self, joining: Joining, name: str, size: int) -> list[Joining]:
        """A trainer joins; see `Forming.join`. Raises `InvalidArgumentError` if others gave another size."""
        forming = self._by_name.get(name) or Forming(name, size, self._is_lost)
        if forming.size != size:
            raise InvalidArgumentError(
                f"the communicator {name!r} is to have {size} members here, and {forming.size} for those that have "
                "joined; all have to give the same size"
            )
        replaced = forming.join(joining)
        for each in replaced:
            del self.by_member[each.key]
        self._by_name[name] = self.by_member[joining.key] = forming
        return replaced

    def take_complete(self) -> list[tuple[str, list[Joining]]]:
        """Removes the communicators that are complete: their names, and their members by rank."""
        found = []
        for name, forming in list(self._by_name.items()):
            ranked = forming.ranked()
            if ranked is not None:
                del self._by_name[name]
                for each in ranked:
                    del self.by_member[each.key]
                found.append((name, ranked))
        return found

    def statuses(self) -> list[CommunicatorStatus]:
        """What the owner reports of them."""
        forming = self._by_name.values()
        return [CommunicatorStatus(each.name, each.size, len(each.joined), 0, (), 0, "") for each in forming]

    def late(self, now: float) -> list[Joining]:
        """The trainers whose time is over."""
        return [each for forming in self._by_name.values() for each in forming.joined if each.wait.until <= now]

    def remove(self, key: tuple[bytes, int]) -> tuple[Joining, str] | None:
        """Removes a trainer that waits no more; returns it and what it has waited for, or None if it does not wait."""
        forming = self.by_member.pop(key, None)
        if forming is None:
            return None
        (joining,) = (each for each in forming.joined if each.key == key)
        told = f"the communicator {forming.name!r} is not complete: {forming.missing()}"
        forming.joined.remove(joining)
        if not forming.joined:
            del self._by_name[forming.name]
        return joining, told


def check_join(name: str, size: int, rank: int | None) -> None:
    """Raises `InvalidArgumentError` if what a trainer asks for makes no sense."""
    if not 0 < len(name) <= LONGEST_NAME:
        raise InvalidArgumentError(f"the name of a communicator has 1 to {LONGEST_NAME} characters")
    if not 0 < size <= MOST_MEMBERS:
        raise InvalidArgumentError(f"a communicator has 1 to {MOST_MEMBERS:,} members, not {size}")
    if rank is not None and not 0 <= rank < size:
        raise InvalidArgumentError(f"the ranks of {size} members are 0 to {size - 1}, not {rank}")
