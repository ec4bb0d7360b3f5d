"""The directory of a group: names and addresses of its members, and rendezvous between them.

Every owner has one; a group agrees on one owner's. An entry lives as long as the session of the process that made it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Container, Iterable
from concurrent.futures import Future
from typing import Any, Final

from ps_service.group.formation import Formation, MemberEntry
from ps_service.group.lineage import NO_LINEAGE, Lineage
from ps_service.group.rendezvous import Arrival, Departures, Presence, Rendezvous, RendezvousResult
from ps_wire.errors import (
    MIXED_GROUPS,
    SESSION_ENDED,
    InvalidArgumentError,
    NameConflictError,
    ReplacedError,
    SessionLostError,
    UnavailableError,
    UnknownNameError,
)

_LARGEST_ID: Final = 2**31 - 1
"""The largest number that a member may ask for. Owners get larger ones, for which there has to be room."""


class Wait:
    """A wait, under the lock of the directory, until a condition returns a result (not None) or raises an error.

    If the wait expires, `on_expiry` returns the result or raises the error. `future` gets either.
    """

    def __init__(self, lock: threading.RLock, condition: Callable[[], Any], on_expiry: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._lock = lock
        self._condition = condition
        self._on_expiry = on_expiry

    def check(self) -> None:
        """Checks the condition again."""
        if not self.future.done():
            self._end(self._condition)

    def expire(self) -> None:
        """Ends the wait, because its time is over or the caller has gone."""
        with self._lock:
            if not self.future.done():
                self._end(self._on_expiry)

    def _end(self, outcome: Callable[[], Any]) -> None:
        try:
            found = outcome()
        except Exception as error:
            self.future.set_exception(error)
        else:
            if found is not None:
                self.future.set_result(found)


class Directory:
    """The members of a group. Safe to use from several threads.

    `is_away` tells of sessions without an open stream, and `has_session` of those that have not ended: before `leave`.
    """

    def __init__(
        self, is_away: Callable[[bytes], bool] = lambda _: False, has_session: Callable[[bytes], bool] = lambda _: True
    ) -> None:
        self._is_away = is_away
        self._has_session = has_session
        self._formation: Formation | None = None
        self._lock = threading.RLock()
        self._entries: dict[str, MemberEntry] = {}
        # The numbers of all owners that have been there. Trainers order them by these numbers, so none has another's.
        self._owners: dict[str, int] = {}
        # Of each name, the last member that has data to continue, also if it is not there any more.
        self._last: dict[str, MemberEntry] = {}
        # Is told of each member that a later start of its state has replaced, and of that one.
        self.when_replaced: Callable[[MemberEntry, MemberEntry], object] | None = None
        # In the order in which they began.
        self._rendezvous: list[Rendezvous] = []
        self._departures = Departures()
        self._waits: list[Wait] = []
        self._closed = ""
        self._is_mirror = False

    def __len__(self) -> int:
        return len(self._entries)

    def members(self) -> list[MemberEntry]:
        """All members, in the order of their numbers."""
        with self._lock:
            return sorted(self._entries.values(), key=lambda entry: entry.id)

    def begin(self, size: int) -> None:
        """Makes the group one that begins as a whole, with so many members, before the first one comes."""
        if self._formation is None:
            self._formation = Formation(size, self._is_away)

    def enter(
        self,
        session: bytes,
        name: str,
        address: str,
        id: int | None = None,
        *,
        is_owner: bool = False,
        lineage: Lineage = NO_LINEAGE,
    ) -> MemberEntry:
        """Enters a member of an open group. Doing so again with the same name and session changes the address.

        A process with the name and address of a member that is away is taken for that member, restarted after a crash.
        So is one that continues the state of the member, wherever it is, and whether or not the member still runs.
        Without `id`, a member gets its previous number or the lowest free one, and a new owner one above those of all
        owners that have been there. Raises `NameConflictError` if another has the name or number, `ReplacedError` if
        that is a later start of the same state, `InvalidArgumentError` if the group begins as a whole, and
        `SessionLostError` if the session has ended.
        """
        _check(name, address, id)
        with self._lock:
            self._check_session(session)
            if self._is_mirror:
                raise InvalidArgumentError(
                    f"the directory of this group has several keepers: give {name!r} the addresses of all of them, as "
                    "in ps-service serve --directory A,B,C. Programs join groups whose directory one owner keeps"
                )
            if self._formation is not None:
                raise InvalidArgumentError(
                    f"{MIXED_GROUPS} All members of this group gave world_size=, and {name!r} did not"
                )
            known = self._entries.get(name)
            self._check_name(known or self._last.get(name), lineage)
            before = known if known is not None and known.session != session else None
            replaces = before is not None and lineage.continues(before.lineage)
            if (
                before is not None
                and not replaces
                and not (before.address == address and self._is_away(before.session))
            ):
                raise NameConflictError(
                    f"the name {name!r} is not unique: the member at {before.address} has it; choose another name, or "
                    "wait until its session has ended"
                )
            taken = {entry.id: entry.name for entry in self._entries.values() if entry.name != name}
            if id is None:
                id = known.id if known is not None else self._number(name, taken, is_owner)
            elif id in taken:
                raise NameConflictError(f"number {id} belongs to {taken[id]!r}; {name!r} has to choose another")
            entry = MemberEntry(name, address, id, session, is_owner, lineage)
            self._put(entry)
            if before is not None and replaces and self.when_replaced is not None:
                self.when_replaced(before, entry)
            self._check_waits()
            return entry

    def mirror(self, entries: Iterable[MemberEntry]) -> None:
        """Has these members from now on, as several keepers tell them. None can enter or leave here."""
        with self._lock:
            self._is_mirror = True
            self._entries = {entry.name: entry for entry in entries}
            self._check_waits()

    def arrive(self, session: bytes, name: str, address: str, id: int, size: int) -> Wait:
        """A member of a group that begins as a whole arrives, and waits for the others (see `Formation`).

        The result is a `Progress`: if the wait expires, with who is missing. Raises as `Formation.arrive`,
        `InvalidArgumentError` if the group is open, and `SessionLostError` if the session has ended.
        """
        _check(name, address, id)
        with self._lock:
            self._check_session(session)
            formation = self._formation
            if formation is None:
                raise InvalidArgumentError(f"{MIXED_GROUPS} This group is open, and {name!r} gave world_size={size}")
            for each in formation.arrive(MemberEntry(name, address, id, session), size):
                self._put(each)
            wait = self._wait(formation.outcome, formation.progress)
            self._check_waits()
            return wait

    def give_up(self, why: str) -> None:
        """The member of this process waits no longer for a group that begins as a whole: no member does."""
        with self._lock:
            if self._formation is not None:
                self._formation.give_up(why)
                self._check_waits()

    def told(self, session: bytes) -> Wait:
        """Waits until all members but that with a session know what they have waited for, or have left.

        That is how the beginning of the group has ended, and the result of each rendezvous that is complete.
        """

        def all_told() -> bool | None:
            if self._formation is not None and not self._formation.all_told(session):
                return None
            return None if any(each.complete for each in self._rendezvous) else True

        return self._wait(all_told, lambda: False)

    def leave(self, session: bytes, lost: bool = False) -> None:
        """Removes the entries and arrivals of a session that has ended: as lost, if without a word from its member."""
        with self._lock:
            if self._formation is not None:
                self._formation.leave(session)
            for entry in [entry for entry in self._entries.values() if entry.session == session]:
                del self._entries[entry.name]
                self._departures.left(entry.name, lost)
            for rendezvous in list(self._rendezvous):
                rendezvous.lose(session)
                self._drop(rendezvous)
            self._check_waits()

    @staticmethod
    def _check_name(last: MemberEntry | None, lineage: Lineage) -> None:
        """Raises if a later start than this one has had the name."""
        if last is not None and last.lineage.continues(lineage):
            raise ReplacedError(
                f"a later start of the state of {last.name!r} has taken its place, at {last.address}; this one takes "
                "no requests any more"
            )

    def _check_session(self, session: bytes) -> None:
        """Raises if a session has ended. Under the lock that `leave` takes, so that nothing of it comes later."""
        if not self._has_session(session):
            raise SessionLostError(SESSION_ENDED)

    def _check_own(self, name: str, session: bytes) -> None:
        """Raises if the entry of a member belongs to another session."""
        entry = self._entries.get(name)
        if entry is not None and entry.session != session:
            raise NameConflictError(
                f"another process is {name!r} now, at {entry.address}: the directory had lost this one, and the other "
                "has joined since"
            )

    def find(self, name: str, id: int | None = None) -> MemberEntry | None:
        """A member, by name or else by number."""
        with self._lock:
            if id is None:
                return self._entries.get(name)
            return next((entry for entry in self._entries.values() if entry.id == id), None)

    def awaited(self, name: str, id: int | None = None) -> Wait:
        """Waits for a member; if it expires, the error is an `UnknownNameError` that lists the members."""

        def on_expiry() -> Any:
            there = ", ".join(entry.name for entry in self.members()) or "none"
            who = repr(name) if id is None else f"number {id}"
            raise UnknownNameError(f"the group has no member {who}; its members are: {there}")

        return self._wait(lambda: self.find(name, id), on_expiry)

    def gathered(self, at_least: int, owners: int = 0) -> Wait:
        """Waits for so many members, and owners among them; if it expires, the result is who is there."""

        def found() -> list[MemberEntry] | None:
            enough = len(self) >= at_least and sum(entry.is_owner for entry in self._entries.values()) >= owners
            return self.members() if enough else None

        return self._wait(found, self.members)

    def alone(self, name: str) -> Wait:
        """Waits until no other member than `name` is left; if it expires, the result is the list of members."""
        return self._wait(lambda: self.members() if self._entries.keys() <= {name} else None, self.members)

    def rendezvous(
        self,
        session: bytes,
        key: str,
        name: str,
        names: tuple[str, ...],
        value: Any,
        *,
        leaving: bool = False,
        stays: bool = False,
        number: int = 0,
    ) -> Wait:
        """Waits until all named members have arrived. The result is a `RendezvousResult`, which names who is missing.

        There may be several with the same key. An arrival belongs to the first that is not complete and has no other of
        this session; if there is none, it begins another. Its `number` is another for each arrival of the session. A
        member that asks again gives the same number, and `SAME` as its value. For those that are `leaving`, who has
        left is not missing. One that `stays` has still arrived when the wait expires. Raises `InvalidArgumentError` if
        the members do not name the same, `NameConflictError` if another process is that member now, or
        `SessionLostError`.
        """
        arrival = Arrival(session, number)
        with self._lock:
            self._check_session(session)
            self._check_own(name, session)
            rendezvous = self._found(key, name, arrival) or Rendezvous(key, names, leaving, self._presence)
            if name not in names:
                raise InvalidArgumentError(
                    f"member {name!r} is not among the members of its rendezvous {key!r}: {', '.join(names)}"
                )
            if rendezvous.names != names:
                raise InvalidArgumentError(
                    f"member {name!r} names {', '.join(names)} for the rendezvous {key!r}, but others wait there for "
                    f"{', '.join(rendezvous.names)}; all members have to give the same names in the same order"
                )
            if rendezvous not in self._rendezvous:
                self._rendezvous.append(rendezvous)
            rendezvous.arrive(name, arrival, value)
            if leaving and rendezvous.complete and self._formation is not None:
                self._formation.end(names)

            def result() -> RendezvousResult | None:
                found = rendezvous.result(name)
                if found is None and self._closed:
                    raise UnavailableError(self._closed)
                return found

            wait = self._wait(result, lambda: rendezvous.look(name) if stays else rendezvous.withdraw(name, arrival))
            wait.future.add_done_callback(lambda future: self._depart(rendezvous, name, arrival, future, stays))
            return wait

    def close(self, why: str) -> None:
        """The member of this process leaves, and the directory with it: no rendezvous will be complete any more."""
        with self._lock:
            self._closed = why
            self._check_waits()

    def _presence(self, name: str, seen_by: str) -> Presence:
        entry = self._entries.get(name)
        if entry is None:
            return Presence(False, departure=self._departures.of(name, seen_by))
        return Presence(True, self._is_away(entry.session))

    def _number(self, name: str, taken: Container[int], is_owner: bool) -> int:
        """The number of a member that asks for none: its previous one, or one that nobody has had as an owner."""
        previous = self._owners.get(name)
        if previous is not None and previous not in taken:
            return previous
        owners = set(self._owners.values())
        least = max(owners, default=-1) + 1 if is_owner else 0
        return next(number for number in itertools.count(least) if number not in taken and number not in owners)

    def _put(self, entry: MemberEntry) -> None:
        known = self._entries.get(entry.name)
        self._entries[entry.name] = entry
        if entry.is_owner:
            self._owners[entry.name] = entry.id
        if entry.lineage.incarnation:
            self._last[entry.name] = entry
        if known is None or known.session != entry.session:
            self._departures.came(entry.name)
            for rendezvous in list(self._rendezvous):
                rendezvous.supersede(entry.name, entry.session)
                self._drop(rendezvous)

    def _found(self, key: str, name: str, arrival: Arrival) -> Rendezvous | None:
        """The rendezvous at which a member has arrived, or else the first that it can arrive at, if there is one."""
        known = [each for each in self._rendezvous if each.key == key]
        arrived = (each for each in known if each.has(name, arrival))
        return next(arrived, None) or next((each for each in known if each.takes(name, arrival)), None)

    def _depart(self, rendezvous: Rendezvous, name: str, arrival: Arrival, wait: Future[Any], stays: bool) -> None:
        """The wait of a member is over; it asks again if it stays and others are missing."""
        with self._lock:
            if wait.exception() is not None:
                rendezvous.fail(name, arrival)
            elif not (stays and wait.result().missing):
                rendezvous.depart(name, arrival)
            self._drop(rendezvous)

    def _drop(self, rendezvous: Rendezvous) -> None:
        if rendezvous.over and rendezvous in self._rendezvous:
            self._rendezvous.remove(rendezvous)
            self._check_waits()

    def _wait(self, condition: Callable[[], Any], on_expiry: Callable[[], Any]) -> Wait:
        with self._lock:
            wait = Wait(self._lock, condition, on_expiry)
            self._waits.append(wait)
            wait.future.add_done_callback(lambda _: self._forget(wait))
            self._check_waits()
            return wait

    def _forget(self, wait: Wait) -> None:
        with self._lock:
            if wait in self._waits:
                self._waits.remove(wait)

    def _check_waits(self) -> None:
        for wait in list(self._waits):
            wait.check()


def _check(name: str, address: str, id: int | None) -> None:
    if not name or not address:
        raise InvalidArgumentError("a member of a group needs a name and an address")
    if id is not None and id > _LARGEST_ID:
        raise InvalidArgumentError(f"the number of a member is at most {_LARGEST_ID:,}, and not {id:,}")
