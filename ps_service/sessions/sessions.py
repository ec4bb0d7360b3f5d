"""Sessions: who is connected, and which of their requests have been taken."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ps_wire.number_set import SeenNumbers

if TYPE_CHECKING:
    from ps_wire.limits import Limits

_REMEMBERED: Final = 4096
"""Trainers whose session the operator has ended, and who have not come back since."""


class SessionState:
    """One trainer on this owner.

    Attributes:
        trainer: Who it is.
        taken: Numbers of the requests that were taken up; none of them is ever run again.
        streams: How many streams are open for it: while there is one, the session lives.
        ended: Whether it was freed.
        why_lost: Why the owner ended it, if it was not the lease; for its trainer.
        number: Tells sessions apart whose trainers' ids begin alike.
        transport: What carries it, or did so last: `grpc`, `shared-memory connection` or `unary`.
        peer: Address of the trainer, or its process, as the transport says it.
    """

    def __init__(self, trainer: bytes, clock: Callable[[], float], number: int = 0) -> None:
        self.trainer = trainer
        self.number = number
        self.why_lost = ""
        self.transport = ""
        self.peer = ""
        self.taken = SeenNumbers()
        self.streams = 0
        self.ended = False
        self._clock = clock
        self._began = self._seen = clock()

    @property
    def name(self) -> str:
        """For people: the first digits of the trainer's id, which itself is a secret."""
        return self.trainer.hex()[:8]

    def age_seconds(self) -> float:
        """How long ago it began on this owner."""
        return self._clock() - self._began

    def touch(self) -> None:
        """Starts the lease anew."""
        self._seen = self._clock()

    def idle_seconds(self) -> float:
        """How long ago the session was last heard of; 0 while a stream is open."""
        return 0.0 if self.streams else self._clock() - self._seen

    def __repr__(self) -> str:
        state = "ended" if self.ended else f"{self.streams} streams"
        return f"<Session {self.trainer.hex()[:8]}, {state}, {self.taken}>"


class Sessions:
    """The sessions of an owner.

    Args:
        limits: Among them the length of a lease.
        clock: Seconds, monotonic.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._sessions: dict[bytes, SessionState] = {}
        self._numbers = itertools.count(1)
        self._evicted: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[SessionState]:
        return list(self._sessions.values())

    @property
    def connected(self) -> int:
        """How many sessions have an open stream."""
        return sum(1 for session in self.all() if session.streams)

    def get(self, trainer: bytes) -> SessionState | None:
        return self._sessions.get(trainer)

    def is_away(self, trainer: bytes) -> bool:
        """Whether a trainer has no open stream; its lease may still run."""
        session = self._sessions.get(trainer)
        return session is None or not session.streams

    def open(self, trainer: bytes) -> SessionState:
        """The session of a trainer, begun now if there is none."""
        session = self._sessions.get(trainer)
        if session is None:
            session = self._sessions[trainer] = SessionState(trainer, self._clock, next(self._numbers))
        session.touch()
        return session

    def end(self, session: SessionState) -> None:
        session.ended = True
        if session.why_lost:
            self._evicted[session.trainer] = session.why_lost
            if len(self._evicted) > _REMEMBERED:
                del self._evicted[next(iter(self._evicted))]
        if self._sessions.get(session.trainer) is session:
            del self._sessions[session.trainer]

    def take_why_lost(self, trainer: bytes) -> str:
        """Why the owner ended the last session of a trainer who comes back, to be told once; empty if it did not."""
        return self._evicted.pop(trainer, "")

    def expired(self) -> Iterable[SessionState]:
        """The sessions whose lease has run out."""
        lease = self._limits.lease_seconds
        return [session for session in self._sessions.values() if session.idle_seconds() > lease]
