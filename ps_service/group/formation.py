"""Members of a group, and the beginning of one whose members start together, as with `world_size`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from ps_service.group.lineage import NO_LINEAGE, Lineage
from ps_wire.errors import DrainingError, InvalidArgumentError, NameConflictError, PsError, UnavailableError

K = TypeVar("K")


class MemberEntry(NamedTuple):
    """One member. `is_owner` says that it serves trainers, and is no program that has joined by itself."""

    name: str
    address: str
    id: int
    session: bytes
    is_owner: bool = False
    lineage: Lineage = NO_LINEAGE

    def __str__(self) -> str:
        return f"{self.name!r} (rank {self.id})"


class Progress(NamedTuple):
    """Who is there, in the order of ranks, and a description of each member that is missing."""

    members: list[MemberEntry]
    missing: list[str]


class Formation:
    """The members of a group that begins as a whole. They enter it all at once, or none of them does.

    When as many have arrived, and have connections, as there shall be, it is whole, or has failed if they do not agree,
    or the member with the directory gives up. Late members get the same outcome. The lock of the directory guards it.
    """

    def __init__(self, size: int, is_away: Callable[[bytes], bool]) -> None:
        self._size = size
        self._is_away = is_away
        self._whole = False
        self._error: PsError | None = None
        self._arrived: dict[bytes, MemberEntry] = {}
        self._sizes: dict[bytes, int] = {}
        self._told: set[bytes] = set()
        # The sessions of members that have left since the group is whole.
        self._gone: set[bytes] = set()
        self._over = False

    def arrive(self, entry: MemberEntry, size: int) -> list[MemberEntry]:
        """A member arrives, asks again, or says that it knows the outcome. Returns who enters the directory now.

        Raises `NameConflictError` if the group is whole without it, `InvalidArgumentError` if it is of another size,
        and `DrainingError` if the members have met to leave the group.
        """
        known = self._arrived.get(entry.session)
        if self._whole:
            if entry == known and entry.session not in self._gone:
                self._told.add(entry.session)
                return []
            if self._over:
                # Not as if it was started again after a crash: it may be meant for a group that begins after this one.
                raise DrainingError(
                    f"the members of this group have met to leave it, and {entry} comes too late for it"
                )
            if entry != known:
                self._check_return(entry, size)
            self._replace(entry, size)
            return [entry]
        self._replace(entry, size)
        return self.members() if self._becomes_whole() else []

    def leave(self, session: bytes) -> None:
        """A session has ended. Its member may arrive again, also in that session if its process was not restarted."""
        if session in self._arrived:
            self._told.add(session)
            if self._whole:
                self._gone.add(session)
            elif self._error is None:
                del self._arrived[session], self._sizes[session]

    def end(self, names: Iterable[str]) -> None:
        """Members have met to leave. If these are all, none comes back."""
        self._over = self._over or (self._whole and {entry.name for entry in self._arrived.values()} <= set(names))

    def give_up(self, why: str) -> None:
        """The member with the directory does not wait any longer: the formation fails for all."""
        if not self._whole and self._error is None:
            self._error = UnavailableError(f"the group has not come together: {why}")

    def members(self) -> list[MemberEntry]:
        """Those that have arrived, by rank and name."""
        return sorted(self._arrived.values(), key=lambda entry: (entry.id, entry.name))

    def outcome(self) -> Progress | None:
        """The members of the whole group; None while it is forming. Raises the error if it has failed."""
        if self._error is not None:
            raise self._error
        return Progress(self.members(), []) if self._whole else None

    def progress(self) -> Progress:
        """Who is there now, and who is missing."""
        away = [f"{entry}, whose connection is broken" for entry in self.members() if self._is_away(entry.session)]
        ranks = {entry.id for entry in self._arrived.values()}
        return Progress(self.members(), [f"rank {rank}" for rank in range(self._size) if rank not in ranks] + away)

    def all_told(self, session: bytes) -> bool:
        """Whether all members know the outcome, or have left. One with this session is not counted."""
        if self._error is not None and len(self._sizes) < max(self._sizes.values(), default=0):
            return False
        return self._arrived.keys() - {session} <= self._told

    def _replace(self, entry: MemberEntry, size: int) -> None:
        """Adds a member. Its process may have been restarted."""
        for other in self._former(entry):
            del self._arrived[other.session], self._sizes[other.session]
            self._gone.discard(other.session)
        self._gone.discard(entry.session)
        self._arrived[entry.session], self._sizes[entry.session] = entry, size

    def _former(self, entry: MemberEntry) -> list[MemberEntry]:
        """What has arrived under this name and rank, from a session that has no connection any more."""
        return [
            other
            for other in self._arrived.values()
            if (other.name, other.id) == (entry.name, entry.id) and self._is_away(other.session)
        ]

    def _becomes_whole(self) -> bool:
        """Decides, if as many are there as there shall be."""
        there = [entry for entry in self.members() if not self._is_away(entry.session)]
        if self._error is not None or not there:
            return False
        if len(there) < min(self._sizes[entry.session] for entry in there):
            return False
        self._error = self._disagreement(there)
        self._whole = self._error is None
        return self._whole

    def _disagreement(self, there: Sequence[MemberEntry]) -> PsError | None:
        sizes = _grouped((self._sizes[entry.session], str(entry)) for entry in there)
        if len(sizes) > 1:
            told = "; ".join(f"{size} to {', '.join(sizes[size])}" for size in sorted(sizes))
            return InvalidArgumentError(f"all members of a group need the same world_size, and it was given as {told}")
        for rank, names in _grouped((entry.id, repr(entry.name)) for entry in there).items():
            if len(names) > 1:
                return NameConflictError(
                    f"rank {rank} is not unique: {' and '.join(names)} have it; each member needs its own"
                )
        for name, ranks in _grouped((entry.name, str(entry.id)) for entry in there).items():
            if len(ranks) > 1:
                return NameConflictError(
                    f"the name {name!r} is not unique: ranks {' and '.join(ranks)} have it; each member needs its own"
                )
        return None

    def _check_return(self, entry: MemberEntry, size: int) -> None:
        """A member of the whole group may come back, maybe restarted; any other is refused."""
        if size != self._size:
            raise InvalidArgumentError(f"this group has {self._size} members, and {entry} was given world_size={size}")
        if not self._former(entry):
            names = ", ".join(map(str, self.members()))
            raise NameConflictError(
                f"the name or rank of {entry} is not unique: this group is complete, and its members are {names}"
            )


def _grouped(pairs: Iterable[tuple[K, str]]) -> dict[K, list[str]]:
    found: defaultdict[K, list[str]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found
