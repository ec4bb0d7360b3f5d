"""The communicators of an owner: who is a member of which, who waits, and how much is held for all of them."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_service.collectives import report
from ps_service.collectives.communicator import Arrival, Collective, Communicator, Exchange, exchanged, pieces_of
from ps_service.collectives.forming import Formations, Joining, check_join
from ps_service.collectives.reducing import reduced
from ps_service.collectives.waits import Wait
from ps_wire.collectives import LONGEST_NAME, MOST_MEMBERS
from ps_wire.errors import (
    RAN_OUT,
    CancelledCallError,
    DeadlineExceededError,
    InvalidArgumentError,
    OverloadedError,
    PsError,
    SessionLostError,
    UnavailableError,
)

if TYPE_CHECKING:
    from ps_service.collectives.trainers import Trainers
    from ps_wire.collectives import Signature
    from ps_wire.limits import Limits
    from ps_wire.status.parts import CommunicatorStatus

_LOOK_SECONDS: Final = 0.25
"""How often it is checked whether waits are over, and whether those that others wait for are lost."""

_SHORT_SECONDS: Final = 5.0
"""Shorter waits have a timer of their own."""

_MOST_OF_ONE: Final = 256
"""Most memberships of one trainer."""

Key = tuple[bytes, int]
"""A membership: the session, and the number by which its trainer names it."""


class Membership(NamedTuple):
    """The place of a trainer in a communicator.

    Attributes:
        communicator: The communicator.
        rank: Its rank there.
    """

    communicator: Communicator
    rank: int


class Communicators:
    """The communicators of an owner. Safe from several threads. Nothing waits under its lock.

    Args:
        sessions: The sessions of the owner.
        limits: `max_message_bytes` bounds the values that one communicator holds, `max_owner_bytes` those of all.
        later: Calls a function after some seconds.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        sessions: Trainers,
        limits: Limits,
        later: Callable[[float, Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions = sessions
        self._limits = limits
        self._later = later
        self._clock = clock
        self._lock = threading.Lock()
        self._formations = Formations(self._is_lost)
        self._members: dict[Key, Membership] = {}
        # The members of each communicator that have not left.
        self._present: defaultdict[Communicator, int] = defaultdict(int)
        self._looking = False

    @property
    def nbytes(self) -> int:
        """Bytes of values that are held for collectives that are not complete."""
        return sum(communicator.nbytes for communicator in list(self._present))

    def snapshot(self) -> list[CommunicatorStatus]:
        """All communicators, also those whose members are still joining."""
        with self._lock:
            return report.of_all(self._present, self._formations.all())

    def join(
        self,
        session: bytes,
        member: int,
        name: str,
        size: int,
        rank: int | None = None,
        patience: float = 1.0,
        seconds: float = 0.0,
    ) -> Future[int]:
        """A trainer joins a communicator, and waits until all have.

        Args:
            session: Its session.
            member: The number by which it names this membership.
            name: Name of the communicator. One that is complete does not take further members; these begin another.
            size: How many members it has.
            rank: The rank that it asks for; None for the lowest that is free.
            patience: Seconds that a member may be without a connection before it is lost; the largest one counts.
            seconds: How long to wait; 0 is no limit.

        Returns:
            Its rank. If the time is over, a `DeadlineExceededError` that tells who has joined.

        Raises:
            InvalidArgumentError: The arguments make no sense, or others have joined with another size.
            NameConflictError: Another trainer has the rank.
            OverloadedError: The trainer is a member of too many.
            SessionLostError: Its session has ended.
        """
        check_join(name, size, rank, MOST_MEMBERS, LONGEST_NAME)
        joining = Joining(session, member, rank, patience, self._wait(seconds))
        with self._lock:
            if self._sessions.get(session) is None:
                raise SessionLostError("the session of this trainer has ended")
            known = [*self._members, *self._formations.by_member]
            if joining.key in known:
                raise InvalidArgumentError(f"this trainer is a member under the number {member} already")
            mine = sum(each == session for each, _ in known)
            if mine >= _MOST_OF_ONE:
                raise OverloadedError(f"this trainer is a member of {mine} communicators; leave those that are over")
            replaced = self._formations.join(joining, name, size)
            made = self._make()
            self._look_later(joining.wait)
        for each in replaced:
            each.future.set_exception(UnavailableError("another trainer has taken this place: this one was away"))
        _tell(made)
        return joining.future

    def give_up_joining(self, session: bytes, member: int) -> None:
        """A trainer does not wait for the others any more. Nothing happens if all have come."""
        with self._lock:
            found = self._formations.remove((session, member), "the trainer does not wait any more")
        if found is not None:
            found[0].future.set_exception(CancelledCallError(found[1]))

    def call(
        self,
        session: bytes,
        member: int,
        number: int,
        signature: Signature,
        arrival: Arrival,
        seconds: float = 0.0,
    ) -> Future[Exchange]:
        """A member takes part in a collective, and waits for the others.

        Args:
            session: Its session.
            member: The number of its membership.
            number: How many collectives of the communicator it has called, with this one.
            signature: What it asks for.
            arrival: What it sends.
            seconds: How long to wait; 0 is no limit.

        Returns:
            What it gets. If the time is over, a `DeadlineExceededError` that names the members that have not come.

        Raises:
            UnavailableError: It is no member, or another member is gone.
            PsError: The communicator has ended, or ends because of this call.
        """
        arrival.wait = self._wait(seconds)
        complete: Collective | None = None
        refused: PsError | None = None
        failed: list[Future[Exchange]] = []
        with self._lock:
            communicator, rank = self._membership(session, member)
            if communicator.ending is None:
                self._check(communicator, rank, signature, arrival)
            try:
                complete = communicator.arrive(rank, number, signature, arrival)
            except PsError as error:
                refused, failed = error, list(communicator.failed())
            else:
                self._look_later(arrival.wait)
        _fail(failed, communicator)
        if refused is not None:
            raise refused
        if complete is not None:
            self._finish(communicator, complete)
        return arrival.future

    def cancel(self, session: bytes, member: int, number: int) -> None:
        """A member has cancelled its call; if its collective is not complete, the communicator ends."""
        with self._lock:
            found = self._members.get((session, member))
            if found is None:
                return
            communicator, rank = found
            collective = communicator.open.get(number)
            if collective is not None and rank in collective.arrivals:
                communicator.end(UnavailableError, f"{communicator.member(rank)} has cancelled {collective}")
            failed = list(communicator.failed())
        _fail(failed, communicator)

    def leave(self, session: bytes, member: int, why: str) -> None:
        """A member leaves. The communicator ends once another one waits for it.

        Args:
            session: Its session.
            member: The number of its membership; nothing happens if there is none.
            why: The error because of which it leaves, which ends the communicator at once; empty if there is none.
        """
        self.give_up_joining(session, member)
        with self._lock:
            found = self._members.get((session, member))
            if found is None:
                return
            communicator, rank = found
            if why:
                communicator.end(UnavailableError, f"{communicator.member(rank)} has given up: {why}")
            failed = self._part((session, member), "has left")
        _fail(failed, communicator)

    def forget(self, session: bytes, lost: bool = False) -> None:
        """Ends the memberships of a session that has ended.

        Args:
            session: The session.
            lost: Whether it ended without a word from its trainer.
        """
        with self._lock:
            joining = [key for key in self._formations.by_member if key[0] == session]
            members = [key for key in self._members if key[0] == session]
        for key in joining:
            self.give_up_joining(*key)
        for key in members:
            with self._lock:
                found = self._members.get(key)
                failed = self._part(key, "is lost: its session has ended" if lost else "has left")
            if found is not None:
                _fail(failed, found.communicator)

    # The rest is called with the lock, unless it says otherwise

    def _membership(self, session: bytes, member: int) -> Membership:
        found = self._members.get((session, member))
        if found is None:
            raise UnavailableError(
                "this trainer is no member of the communicator on this owner: it has left, or the owner has started "
                "again; make the communicator again"
            )
        return found

    def _check(self, communicator: Communicator, rank: int, signature: Signature, arrival: Arrival) -> None:
        """Ends a communicator whose call cannot be taken, so that all hear of it."""
        held, size = self.nbytes, communicator.size
        wanted = pieces_of(signature, rank, size)
        if not 0 <= signature.root < size:
            communicator.end(InvalidArgumentError, f"{communicator.member(rank)} calls {signature} of {size} members")
        elif len(arrival.pieces) != wanted:
            told = f"sends {len(arrival.pieces)} values for {signature}, and not {wanted}"
            communicator.end(InvalidArgumentError, f"{communicator.member(rank)} {told}")
        elif held and held + arrival.nbytes > self._limits.max_owner_bytes:
            communicator.end(
                OverloadedError,
                f"collectives on this owner hold {held:,} bytes, and have no space for {arrival.nbytes:,} more; the "
                f"limit is max_owner_bytes, {self._limits.max_owner_bytes:,}",
            )

    def _part(self, key: Key, how: str) -> list[Future[Exchange]]:
        """Ends a membership; returns the waits that this ends."""
        found = self._members.pop(key, None)
        if found is None:
            return []
        communicator, rank = found
        communicator.part(rank, f"{communicator.member(rank)} {how}")
        self._present[communicator] -= 1
        if not self._present[communicator]:
            communicator.end(UnavailableError, "all members have left")
            del self._present[communicator]
        return list(communicator.failed())

    def _make(self) -> list[list[Joining]]:
        """Makes the communicators that have all of their members; returns these by rank."""
        complete = self._formations.take_complete()
        for name, ranked in complete:
            communicator = Communicator(
                name,
                [each.session for each in ranked],
                self._limits.max_message_bytes,
                max(each.patience for each in ranked),
                self._sessions.describe,
            )
            for rank, each in enumerate(ranked):
                self._members[each.key] = Membership(communicator, rank)
                self._present[communicator] += 1
        return [ranked for _, ranked in complete]

    def _is_lost(self, session: bytes, patience: float) -> bool:
        """Whether a trainer has been without a connection for too long. Without a stream, only its lease counts."""
        state = self._sessions.get(session)
        return state is None or (state.transport != "unary" and state.idle_seconds() > patience)

    def _look_later(self, wait: Wait | None = None) -> None:
        """Sees to it that waits end in time."""
        if wait is not None and 0 < wait.seconds < _SHORT_SECONDS:
            self._later(wait.seconds, self._look)
        waits = self._formations.by_member or any(communicator.open for communicator in self._present)
        if waits and not self._looking:
            self._looking = True
            self._later(_LOOK_SECONDS, self._look_again)

    # Without the lock

    def _look_again(self) -> None:
        with self._lock:
            self._looking = False
        self._look()
        with self._lock:
            self._look_later()

    def _look(self) -> None:
        """Ends waits whose time is over, and those for members that are lost."""
        ended: list[tuple[list[Future[Exchange]], Communicator]] = []
        now = self._clock()
        with self._lock:
            # Those that were away may be back.
            made = self._make()
            late = [self._formations.remove(each.key, _over(each.wait)) for each in self._formations.late(now)]
            for communicator in self._present:
                self._end_late(communicator, now)
                for rank in communicator.awaited():
                    if self._is_lost(communicator.sessions[rank], communicator.patience):
                        told = f"{communicator.member(rank)} is lost: its connection broke, and it did not come back"
                        communicator.part(rank, told)
                ended.append((list(communicator.failed()), communicator))
        _tell(made)
        for each in late:
            if each is not None:
                each[0].future.set_exception(DeadlineExceededError(each[1]))
        for failed, communicator in ended:
            _fail(failed, communicator)

    def _end_late(self, communicator: Communicator, now: float) -> None:
        """Ends a communicator if the time of a member that waits is over. With the lock."""
        for collective in communicator.open.values():
            for rank, arrival in collective.arrivals.items():
                if arrival.wait.until <= now:
                    missing = ", ".join(map(communicator.member, communicator.missing(collective)))
                    waited = f"{communicator.member(rank)} has waited {arrival.wait.seconds:g} s in {collective}"
                    communicator.end(DeadlineExceededError, f"{RAN_OUT}: {waited}, for {missing}")
                    return

    def _wait(self, seconds: float) -> Wait:
        return Wait(seconds, self._clock() + seconds if seconds else math.inf)

    def _finish(self, communicator: Communicator, collective: Collective) -> None:
        """Gives all members their results. A reduction that fails ends the communicator."""
        arrivals = collective.arrivals
        if collective.signature.kind != "all_reduce":
            for rank, arrival in arrivals.items():
                arrival.future.set_result(exchanged(rank, collective))
            return
        try:
            values = [arrivals[rank].value for rank in range(communicator.size)]
            result = Exchange((), reduced(values, collective.signature.op))
        except Exception as error:
            kind = type(error) if isinstance(error, PsError) else InvalidArgumentError
            with self._lock:
                communicator.end(kind, f"{collective} has failed: {error}")
                failed = list(communicator.failed())
            _fail([*failed, *(each.future for each in arrivals.values())], communicator)
            return
        for arrival in arrivals.values():
            arrival.future.set_result(result)


def _fail(failed: list[Future[Exchange]], communicator: Communicator) -> None:
    for future in failed:
        future.set_exception(communicator.error())


def _over(wait: Wait) -> str:
    return f"{RAN_OUT}: a trainer has waited {wait.seconds:g} s"


def _tell(made: list[list[Joining]]) -> None:
    for ranked in made:
        for rank, each in enumerate(ranked):
            each.future.set_result(rank)
