"""The sessions of trainers, and the starts of their owner in which these are valid."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_service.access import roles
from ps_service.access.identities import ANYONE, Asker
from ps_service.measures.pace import Pace
from ps_service.quotas.accounts import NOBODY, Account
from ps_wire.errors import PermissionDeniedError
from ps_wire.number_set import SeenNumbers

if TYPE_CHECKING:
    from ps_service.access.identities import Identity
    from ps_service.quotas.quotas import Quotas
    from ps_wire.limits import Limits
    from ps_wire.refs import ContextId

_REMEMBERED: Final = 4096
"""Most trainers whose session the operator ended to remember until they come back."""

_MOST_NAMES: Final = 65_536
"""Most displayed ids of which is remembered whose they were."""


class Incarnations:
    """This start of an owner, named by a random id, and `earlier` ones whose state it continues, newest first.

    `x in incarnations` says whether the sessions, and what else a trainer has built in incarnation `x`, still exist.
    Those that were `killed` have lost the passes that were open.
    """

    def __init__(self) -> None:
        self.current: Final = os.urandom(8).hex()
        self.earlier: tuple[str, ...] = ()
        self.killed: frozenset[str] = frozenset()

    def __contains__(self, incarnation: str) -> bool:
        return incarnation == self.current or incarnation in self.earlier


class Process(NamedTuple):
    """The process of a trainer, as it says itself: empty where it has not told, `member` also outside of a group."""

    program: str = ""
    host_name: str = ""
    id: int = 0
    member: str = ""

    def __str__(self) -> str:
        if not self.id:
            return self.member
        told = f"{self.program or 'a program'}, process {self.id}"
        told = f"{told} on {self.host_name}" if self.host_name else told
        return f"{self.member}: {told}" if self.member else told


class SessionState:
    """One trainer on this owner. The session lives while one of its `streams` is open, and until its lease runs out.

    Its `number` distinguishes trainers whose ids have the same prefix. `peer` is an address or a process, as the
    transport says it; `certificate` is the name in that of the trainer, if it has shown one. `pace` counts the passes
    with which it has stepped optimizers here, and its pushes.
    """

    def __init__(self, trainer: bytes, clock: Callable[[], float], number: int = 0) -> None:
        self.trainer = trainer
        self.number = number
        # Whose it is, and what that may do.
        self.identity = ANYONE
        self.namespace = ""
        self.asker: Asker | None = None
        # Whether its requests are looked at before they run.
        self.is_checked = False
        # Whether its requests may say that others wait for them, as those of hosted code do.
        self.may_nest = True
        self.account = NOBODY
        # Why the owner ended it, for its trainer; empty if the lease ran out.
        self.why_lost = ""
        self.transport = ""
        self.peer = self.certificate = ""
        # Of the requests that were accepted: none of them is executed again.
        self.taken_numbers = SeenNumbers()
        self.streams = 0
        self.ended = False
        self.said_goodbye = False
        self.process = Process()
        self.pace = Pace(clock)
        # On the clock `time.perf_counter`.
        self.last_request = time.perf_counter()
        # Whether it was told that the trainer has come, and that its connection broke.
        self.is_known = self.is_away = False
        # Whether it says which passes are lost when the owner was killed.
        self.tells_last_pass = False
        # The passes that wait for other owners, as its trainer says while this owner drains.
        self.held_up: frozenset[ContextId] = frozenset()
        self._clock = clock
        self._began = self._seen = clock()

    @property
    def name(self) -> str:
        """The first digits of the trainer's id, for display; the full id is a secret."""
        return self.trainer.hex()[:8]

    def by(self) -> dict[str, str]:
        """Who it is, for the audit log."""
        return {"identity": self.identity.name, "address": self.peer, "certificate": self.certificate}

    def age_seconds(self) -> float:
        """Seconds since it began on this owner."""
        return self._clock() - self._began

    def belongs_to(self, identity: Identity, namespace: str | None = None) -> None:
        """Notes whose it is, with what that may do from now on; and in which namespace it looks up names."""
        self.namespace = self.namespace if namespace is None else namespace
        self.identity = identity.within(self.namespace)
        self.asker = None if identity is ANYONE else Asker(self.identity, self.trainer, self.namespace)
        self.is_checked = self.asker is not None or bool(self.namespace)
        self.may_nest = bool(self.identity.rights & roles.OWNER)

    def touch(self) -> None:
        """Renews the lease."""
        self._seen = self._clock()

    def idle_seconds(self) -> float:
        """Seconds since the last request or open stream; 0 while a stream is open."""
        return 0.0 if self.streams else self._clock() - self._seen

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"{self.streams} streams"
        return f"<Session {self.trainer.hex()[:8]}, {state}, {self.taken_numbers}>"


class Sessions:
    """The sessions of an owner, whose leases run on a monotonic clock, in seconds."""

    def __init__(
        self, limits: Limits, clock: Callable[[], float] = time.monotonic, quotas: Quotas | None = None
    ) -> None:
        self._limits = limits
        self._quotas = quotas if quotas is not None and quotas.is_on else None
        self._clock = clock
        self._sessions: dict[bytes, SessionState] = {}
        self._numbers = itertools.count(1)
        self._evicted: dict[bytes, str] = {}
        # The identity of all sessions that were displayed under an id; None if there were several.
        self._identities: dict[str, str | None] = {}
        self._steps_before = 0
        # Is told the id of each trainer whose session begins, and the name of its identity, if the owner has a log.
        self.when_opened: Callable[[bytes, str], None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[SessionState]:
        return list(self._sessions.values())

    @property
    def connected(self) -> int:
        """Number of sessions with an open stream."""
        return sum(1 for session in self.all() if session.streams)

    def get(self, trainer: bytes) -> SessionState | None:
        return self._sessions.get(trainer)

    def has(self, trainer: bytes) -> bool:
        """Whether a trainer has a session. May be called in any thread."""
        return trainer in self._sessions

    def describe(self, trainer: bytes) -> str:
        """A trainer for messages: the first digits of its id, and its process or address."""
        session = self._sessions.get(trainer)
        if session is None:
            return f"{trainer.hex()[:8]} (gone)"
        away = "" if session.streams else f", away for {session.idle_seconds():.0f} s"
        return f"{session.name} ({str(session.process) or session.peer or 'unknown'}{away})"

    def stepped(self, trainer: bytes, of: ContextId | None = None) -> None:
        """Counts a step, an offer to a round, or a push (`of` is None). Of those of one pass the first counts."""
        session = self._sessions.get(trainer)
        if session is not None:
            session.pace.count(of)

    @property
    def steps(self) -> int:
        """The steps of all trainers, also of those that have left. Read on the event loop."""
        return self._steps_before + sum(session.pace.steps for session in self._sessions.values())

    def is_away(self, trainer: bytes) -> bool:
        """Whether a trainer has no open stream; its lease may still run."""
        session = self._sessions.get(trainer)
        return session is None or not session.streams

    def is_lost(self, trainer: bytes, patience: float) -> bool:
        """Whether a trainer has had no stream for so many seconds. Where it never has one, only its lease counts."""
        session = self._sessions.get(trainer)
        return session is None or (session.transport != "unary" and session.idle_seconds() > patience)

    def open(self, trainer: bytes, identity: Identity = ANYONE) -> SessionState:
        """The session of a trainer; created if there is none. Raises `PermissionDeniedError` if it belongs to another
        identity: the id of a trainer is no secret."""
        self.check(trainer, identity)
        session = self._sessions.get(trainer)
        if session is None:
            session = self._sessions[trainer] = SessionState(trainer, self._clock, next(self._numbers))
            session.belongs_to(identity)
            if identity.name:
                self._note_name(session)
            session.account = Account(identity.name)
            if self._quotas is not None:
                self._quotas.take(session.account, sessions=1)
            if self.when_opened is not None:
                self.when_opened(trainer, identity.name)
        elif identity is not ANYONE:
            session.belongs_to(identity)
        session.touch()
        return session

    def is_known_as(self, name: str, identity: str) -> bool:
        """Whether the id that was displayed for a trainer stands for trainers of that identity alone: trainers choose
        their ids, also such as begin like others."""
        return self._identities.get(name) == identity

    def _note_name(self, session: SessionState) -> None:
        known = self._identities.pop(session.name, session.identity.name)
        self._identities[session.name] = known if known == session.identity.name else None
        if len(self._identities) > _MOST_NAMES:
            del self._identities[next(iter(self._identities))]

    def enter(self, session: SessionState, identity: Identity, namespace: str) -> None:
        """A session belongs to an identity, and looks up names in a namespace, from now on. It counts there."""
        session.belongs_to(identity, namespace)
        account = Account(identity.name, session.namespace)
        if self._quotas is not None and account != session.account:
            self._quotas.give(session.account, sessions=1, streams=session.streams)
            self._quotas.take(account, sessions=1, streams=session.streams)
        session.account = account

    def account_of(self, trainer: bytes) -> Account:
        """What counts what a trainer uses. May be called in any thread."""
        session = self._sessions.get(trainer)
        return NOBODY if session is None else session.account

    def admit(self, trainer: bytes, identity: Identity, namespace: str, streams: int = 1) -> None:
        """Raises `QuotaError` if there may be no further session of an identity in a namespace, or no further streams
        in it. A session that comes from another namespace counts as a further one there, with those that it has."""
        if self._quotas is None:
            return
        session = self._sessions.get(trainer)
        known, open_already = ((), 0) if session is None else (self._quotas.tallies(session.account), session.streams)
        for tally in self._quotas.tallies(Account(identity.name, namespace)):
            is_known = tally in known
            tally.check(sessions=not is_known, streams=streams if is_known else streams + open_already)

    def streams(self, session: SessionState, more: int) -> None:
        """Counts a stream of a session that is open from now on, or is no more."""
        session.streams += more
        if self._quotas is not None:
            self._quotas.take(session.account, streams=more)

    def check(self, trainer: bytes, identity: Identity) -> None:
        """Raises `PermissionDeniedError` if a trainer has a session that belongs to another identity."""
        session = self._sessions.get(trainer)
        if session is not None and identity is not ANYONE and session.identity.name != identity.name:
            raise PermissionDeniedError(
                f"the session {session.name} belongs to another identity than {identity}; connect anew, with an id of "
                "your own"
            )

    def end(self, session: SessionState) -> None:
        session.ended = True
        if session.why_lost:
            self._evicted[session.trainer] = session.why_lost
            if len(self._evicted) > _REMEMBERED:
                del self._evicted[next(iter(self._evicted))]
        if self._sessions.get(session.trainer) is session:
            del self._sessions[session.trainer]
            if self._quotas is not None:
                self._quotas.give(session.account, sessions=1)
            self._steps_before += session.pace.steps

    def take_why_lost(self, trainer: bytes) -> str:
        """Removes and returns why the owner ended a returning trainer's last session; empty if it did not."""
        return self._evicted.pop(trainer, "")

    def expired(self) -> Iterable[SessionState]:
        """The sessions whose lease has run out."""
        lease = self._limits.lease_seconds
        return [session for session in self._sessions.values() if session.idle_seconds() > lease]
