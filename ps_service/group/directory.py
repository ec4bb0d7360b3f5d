"""The directory of a group: names and addresses of its members, and rendezvous between them.

An entry belongs to the session of the process that entered it, and is removed when that session ends. Every owner has
a directory; a group of processes agrees on one owner's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from ps_wire.errors import InvalidArgumentError, NameConflictError, UnknownNameError


class MemberEntry(NamedTuple):
    """One member.

    Attributes:
        name: Its name.
        address: Host and port where its owner listens.
        id: The rank it asked for, or the lowest number that was free.
        session: The session that entered it.
    """

    name: str
    address: str
    id: int
    session: bytes


class Wait:
    """A wait until a condition on the directory holds.

    Args:
        lock: The lock of the directory.
        condition: Returns the result, or None while the condition does not hold.
        on_expiry: Returns the result, or raises the error, if the wait expires.

    Attributes:
        future: The result of the wait, or an error if it expired.
    """

    def __init__(self, lock: threading.RLock, condition: Callable[[], Any], on_expiry: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._lock = lock
        self._condition = condition
        self._on_expiry = on_expiry

    def check(self) -> bool:
        """Checks the condition again; returns whether the wait is over."""
        found = self._condition()
        if found is not None and not self.future.done():
            self.future.set_result(found)
        return self.future.done()

    def expire(self) -> None:
        """Ends the wait, because its time is over or the caller has gone."""
        with self._lock:
            if self.future.done():
                return
            try:
                self.future.set_result(self._on_expiry())
            except Exception as error:
                self.future.set_exception(error)


class RendezvousResult(NamedTuple):
    """The result of a rendezvous.

    Attributes:
        missing: Names of the members that had not arrived when the time was over.
        values: The value of each member that arrived, by name.
    """

    missing: list[str]
    values: dict[str, Any]


class Rendezvous:
    """One rendezvous: members wait until all of them have arrived.

    Args:
        names: Names of the members that take part.

    Attributes:
        values: The value of each member that has arrived, by name.
        sessions: The session of each member that has arrived, by name.
        departed: Names of the members whose wait is over.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.sessions: dict[str, bytes] = {}
        self.values: dict[str, Any] = {}
        self.departed: set[str] = set()

    def missing(self) -> list[str]:
        """Names of the members that have not arrived."""
        return [name for name in self.names if name not in self.values]

    def withdraw(self, name: str) -> RendezvousResult:
        """Removes a member whose wait expired; it has to arrive again."""
        missing = self.missing()
        self.values.pop(name, None)
        return RendezvousResult(missing, self.values)


def _never_away(session: bytes) -> bool:
    return False


def _is_again(known: MemberEntry, address: str, is_away: Callable[[bytes], bool]) -> bool:
    return known.address == address and is_away(known.session)


class Directory:
    """The members of a group. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[str, MemberEntry] = {}
        self._rendezvous: dict[str, Rendezvous] = {}
        self._waits: list[Wait] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def waiting(self) -> int:
        """Number of waits in progress."""
        return len(self._waits)

    def members(self) -> list[MemberEntry]:
        """All members, in the order of their numbers."""
        with self._lock:
            return sorted(self._entries.values(), key=lambda entry: entry.id)

    def enter(
        self,
        session: bytes,
        name: str,
        address: str,
        id: int | None = None,
        is_away: Callable[[bytes], bool] = _never_away,
    ) -> MemberEntry:
        """Enters a member. Doing so again with the same name and session changes the address.

        A process with the name and address of a member that is away is taken for that member, restarted after a crash.
        It gets its entry and number back at once, without waiting for the lease of its earlier session.

        Args:
            session: The session that enters it.
            name: Its name.
            address: Host and port where its owner listens.
            id: The number it asks for; None for its previous number or the lowest free one.
            is_away: Tells whether a session has no open stream.

        Raises:
            InvalidArgumentError: A name or address is missing.
            NameConflictError: Another member has the name or the number.
        """
        if not name or not address:
            raise InvalidArgumentError("a member of a group needs a name and an address")
        with self._lock:
            known = self._entries.get(name)
            if known is not None and known.session != session and not _is_again(known, address, is_away):
                raise NameConflictError(
                    f"the name {name!r} is not unique: the member at {known.address} has it; choose another name, or "
                    "wait until its session has ended"
                )
            taken = {entry.id: entry.name for entry in self._entries.values() if entry.name != name}
            if id is None and known is not None:
                id = known.id
            elif id is None:
                id = next(number for number in range(len(taken) + 1) if number not in taken)
            elif id in taken:
                raise NameConflictError(f"number {id} belongs to {taken[id]!r}; {name!r} has to choose another")
            entry = self._entries[name] = MemberEntry(name, address, id, session)
            self._check_waits()
            return entry

    def leave(self, session: bytes) -> None:
        """Removes the entries and arrivals of a session that has ended."""
        with self._lock:
            for entry in [entry for entry in self._entries.values() if entry.session == session]:
                del self._entries[entry.name]
            for key, rendezvous in list(self._rendezvous.items()):
                for name in [name for name, of in rendezvous.sessions.items() if of == session]:
                    rendezvous.values.pop(name, None)
                    self._depart(key, rendezvous, name)
            self._check_waits()

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

    def gathered(self, at_least: int) -> Wait:
        """Waits until there are `at_least` members; if it expires, the result is the list of members."""
        return self._wait(lambda: self.members() if len(self) >= at_least else None, self.members)

    def alone(self, name: str) -> Wait:
        """Waits until no other member than `name` is left; if it expires, the result is the list of members."""
        return self._wait(lambda: self.members() if self._entries.keys() <= {name} else None, self.members)

    def rendezvous(self, session: bytes, key: str, name: str, names: tuple[str, ...], value: Any) -> Wait:
        """Waits until all named members have arrived; if it expires, the result's `missing` names the others.

        Args:
            session: The session of the member that arrives.
            key: The key that all of them use; it can be used again once their waits are over.
            name: The member that arrives.
            names: The members that take part, itself among them.
            value: The value that all of them receive.

        Raises:
            InvalidArgumentError: `name` is not among `names`, or members that wait under this key named others.
        """
        with self._lock:
            rendezvous = self._rendezvous.get(key) or Rendezvous(names)
            if name not in names:
                raise InvalidArgumentError(
                    f"member {name!r} is not among the members of its rendezvous {key!r}: {', '.join(names)}"
                )
            if rendezvous.names != names:
                raise InvalidArgumentError(
                    f"member {name!r} names {', '.join(names)} for the rendezvous {key!r}, but others wait there for "
                    f"{', '.join(rendezvous.names)}; all members have to give the same names in the same order"
                )
            self._rendezvous[key] = rendezvous
            rendezvous.values[name] = value
            rendezvous.sessions[name] = session
            wait = self._wait(
                lambda: None if rendezvous.missing() else RendezvousResult([], rendezvous.values),
                lambda: rendezvous.withdraw(name),
            )
            wait.future.add_done_callback(lambda _: self._depart(key, rendezvous, name))
            return wait

    def _depart(self, key: str, rendezvous: Rendezvous, name: str) -> None:
        with self._lock:
            rendezvous.departed.add(name)
            if rendezvous.departed >= set(rendezvous.values) and self._rendezvous.get(key) is rendezvous:
                del self._rendezvous[key]

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
