"""The communicators of an owner: who is a member of which, who waits, and how much is held for all of them."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from ps_service.collectives.communicator import Arrival, Collective, Communicator, Exchange, Wait, exchanged, pieces_of
from ps_service.collectives.forming import Formations, Joining, Key, check_join
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
from ps_wire.numerics.reducer import reduced

if TYPE_CHECKING:
    from ps_wire.collectives import Signature
    from ps_wire.limits import Limits
    from ps_wire.status.parts import CommunicatorStatus

_LOOK_SECONDS: Final = 0.25
"""How often it is checked whether waits are over, and whether those that others wait for are lost."""

_SHORT_SECONDS: Final = 5.0
"""Shorter waits have a timer of their own."""

_MOST_OF_ONE: Final = 256
"""Most memberships of one trainer."""

_GIVEN_UP: Final = "the trainer does not wait any more"


class _Trainers(Protocol):
    """What communicators ask about the sessions of an owner."""

    def has(self, trainer: bytes) -> bool: ...
    def is_lost(self, trainer: bytes, patience: float) -> bool: ...
    def describe(self, trainer: bytes) -> str: ...


class Communicators:
    """The communicators of an owner. Safe from several threads. Nothing waits under its lock.

    `max_message_bytes` bounds the values that one communicator holds, `max_owner_bytes` those of all. `later` calls a
    function after some seconds.
    """

    def __init__(
        self,
        sessions: _Trainers,
        limits: Limits,
        later: Callable[[float, Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions = sessions
        self._limits = limits
        self._later = later
        self._clock = clock
        self._lock = threading.Lock()
        self._formations = Formations(sessions.is_lost)
        self._members: dict[Key, tuple[Communicator, int]] = {}
        # The members of each communicator that have not left.
        self._present: defaultdict[Communicator, int] = defaultdict(int)
        self._outcomes: list[tuple[Future[Any], Any]] = []
        self._looking = False

    @property
    def nbytes(self) -> int:
        """Bytes of values that are held for collectives that are not complete."""
        return sum(communicator.nbytes for communicator in list(self._present))

    def snapshot(self) -> list[CommunicatorStatus]:
        """All communicators, also those whose members are still joining."""
        with self._lock:
            complete = [communicator.status(present) for communicator, present in self._present.items()]
            return [*complete, *self._formations.statuses()]

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
        """A trainer joins a communicator, and waits until all have, at most `seconds` if not 0. The result is its rank.

        It names this membership by the number `member`, and may be away for `patience` seconds; the largest of all
        counts. Raises as `Formations.join`, and for a trainer that is a member of too many, or has no session.
        """
        check_join(name, size, rank)
        joining = Joining(Key(session, member), name, size, rank, patience, self._wait(seconds))
        with self._changing():
            if not self._sessions.has(session):
                raise SessionLostError("the session of this trainer has ended")
            known = [*self._members, *(each.key for each in self._formations.all())]
            if joining.key in known:
                raise InvalidArgumentError(f"this trainer is a member under the number {member} already")
            mine = sum(key.session == session for key in known)
            if mine >= _MOST_OF_ONE:
                raise OverloadedError(f"this trainer is a member of {mine} communicators; leave those that are over")
            # Those that were away may be back, and be all.
            self._make()
            for each in self._formations.join(joining):
                error = UnavailableError("another trainer has taken this place: this one was away")
                self._outcomes.append((each.future, error))
            self._make()
            self._look_later(joining.wait)
        return joining.future

    def give_up_joining(self, session: bytes, member: int) -> None:
        """A trainer does not wait for the others any more. Nothing happens if all have come."""
        with self._changing():
            self._end_joining(Key(session, member), CancelledCallError, _GIVEN_UP)

    def call(
        self, session: bytes, member: int, number: int, signature: Signature, arrival: Arrival, seconds: float = 0.0
    ) -> Future[Exchange]:
        """A member takes part in a collective, its `number`-th, and waits for the others, at most `seconds` if not 0.

        Raises `UnavailableError` if it is no member, or another one is gone; otherwise an error is that of the
        communicator, which has ended or ends because of this call.
        """
        arrival.wait, key = self._wait(seconds), Key(session, member)
        with self._changing():
            if key not in self._members:
                raise UnavailableError(
                    "this trainer is no member of the communicator on this owner: it has left, or the owner has "
                    "started again; make the communicator again"
                )
            communicator, rank = self._members[key]
            if communicator.ending is None:
                self._check(communicator, rank, signature, arrival)
            try:
                complete = communicator.arrive(rank, number, signature, arrival)
            finally:
                self._fail(communicator)
            self._look_later(arrival.wait)
        if complete is not None:
            self._finish(communicator, complete)
        return arrival.future

    def cancel(self, session: bytes, member: int, number: int) -> None:
        """A member has cancelled its call; if its collective is not complete, the communicator ends."""
        with self._changing():
            key = Key(session, member)
            if key in self._members:
                communicator, rank = self._members[key]
                collective = communicator.open.get(number)
                if collective is not None and rank in collective.arrivals:
                    communicator.end(UnavailableError, f"{communicator.member(rank)} has cancelled {collective}")
                self._fail(communicator)

    def leave(self, session: bytes, member: int, why: str) -> None:
        """A member leaves. Its error, if any, ends the communicator at once; else it ends once another waits for it."""
        key = Key(session, member)
        with self._changing():
            self._end_joining(key, CancelledCallError, _GIVEN_UP)
            if key in self._members:
                communicator, rank = self._members[key]
                if why:
                    communicator.end(UnavailableError, f"{communicator.member(rank)} has given up: {why}")
                self._part(key, "has left")

    def forget(self, session: bytes, lost: bool = False) -> None:
        """Ends the memberships of a session that has ended: as lost, if without a word from its trainer."""
        with self._changing():
            for each in self._formations.all():
                if each.key.session == session:
                    self._end_joining(each.key, CancelledCallError, _GIVEN_UP)
            for key in [key for key in self._members if key.session == session]:
                self._part(key, "is lost: its session has ended" if lost else "has left")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds the lock for a block. Then those that wait get the outcomes that the block has put down for them."""
        self._lock.acquire()
        try:
            yield
        finally:
            outcomes, self._outcomes = self._outcomes, []
            self._lock.release()
            for future, outcome in outcomes:
                if isinstance(outcome, PsError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    # The rest is called with the lock, unless it says otherwise

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

    def _part(self, key: Key, how: str) -> None:
        """Ends a membership."""
        communicator, rank = self._members.pop(key)
        communicator.part(rank, f"{communicator.member(rank)} {how}")
        self._present[communicator] -= 1
        if not self._present[communicator]:
            communicator.end(UnavailableError, "all members have left")
            del self._present[communicator]
        self._fail(communicator)

    def _fail(self, communicator: Communicator) -> None:
        """Once a communicator has ended, all that wait get its error."""
        self._outcomes.extend((future, communicator.error()) for future in communicator.failed())

    def _end_joining(self, key: Key, kind: type[PsError], why: str) -> None:
        """A trainer gets an error because it does not wait for the others any more, if it does."""
        found = self._formations.remove(key)
        if found is not None:
            joining, missing = found
            self._outcomes.append((joining.future, kind(f"{why}: {missing}")))

    def _make(self) -> None:
        """Makes the communicators that have all of their members."""
        for name, ranked in self._formations.take_complete():
            communicator = Communicator(
                name,
                [each.key.session for each in ranked],
                self._limits.max_message_bytes,
                max(each.patience for each in ranked),
                self._sessions.describe,
            )
            for rank, each in enumerate(ranked):
                self._members[each.key] = communicator, rank
                self._present[communicator] += 1
                self._outcomes.append((each.future, rank))

    def _look_later(self, wait: Wait | None = None) -> None:
        """Sees to it that waits end in time."""
        if wait is not None and 0 < wait.seconds < _SHORT_SECONDS:
            self._later(wait.seconds, self._look)
        waits = self._formations.all() or any(communicator.open for communicator in self._present)
        if waits and not self._looking:
            self._looking = True
            self._later(_LOOK_SECONDS, self._look_again)

    # Without the lock

    def _look_again(self) -> None:
        with self._lock:
            self._looking = False
        self._look()

    def _look(self) -> None:
        """Ends waits whose time is over, and those for members that are lost."""
        now = self._clock()
        with self._changing():
            # Those that were away may be back.
            self._make()
            for each in self._formations.all():
                if each.wait.until <= now:
                    why = f"{RAN_OUT}: a trainer has waited {each.wait.seconds:g} s"
                    self._end_joining(each.key, DeadlineExceededError, why)
            for communicator in self._present:
                self._end_late(communicator, now)
                for rank in communicator.awaited():
                    if self._sessions.is_lost(communicator.sessions[rank], communicator.patience):
                        told = f"{communicator.member(rank)} is lost: its connection broke, and it did not come back"
                        communicator.part(rank, told)
                self._fail(communicator)
            self._look_later()

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
            with self._changing():
                communicator.end(kind, f"{collective} has failed: {error}")
                self._fail(communicator)
                self._outcomes.extend((each.future, communicator.error()) for each in arrivals.values())
            return
        for arrival in arrivals.values():
            arrival.future.set_result(result)
