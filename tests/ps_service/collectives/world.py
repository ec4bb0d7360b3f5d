"""A world for the communicators of an owner: sessions, a clock and timers that a test moves."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from ps_service.collectives.communicator import Arrival, Exchange, Piece, pieces_of
from ps_service.collectives.communicators import Communicators
from ps_wire.codec.values import Encoder
from ps_wire.collectives import Signature
from ps_wire.limits import Limits

BARRIER = Signature("barrier")


class World:
    """The communicators of an owner without network.

    Attributes:
        now: The time.
        sessions: Since when each trainer has no connection; None while it has one.
        communicators: What is tested.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.now = 0.0
        self.sessions: dict[bytes, float | None] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.communicators = Communicators(self, limits or Limits(), self._later, lambda: self.now)

    # As the sessions of an owner

    def has(self, trainer: bytes) -> bool:
        return trainer in self.sessions

    def is_lost(self, trainer: bytes, patience: float) -> bool:
        if trainer not in self.sessions:
            return True
        since = self.sessions[trainer]
        return since is not None and self.now - since > patience

    def describe(self, trainer: bytes) -> str:
        return trainer.decode()

    # What a test does

    def trainer(self, name: str) -> bytes:
        """A new trainer with a connection."""
        self.sessions[name.encode()] = None
        return name.encode()

    def join(self, trainer: bytes, size: int, member: int = 1, **more: Any) -> Future[int]:
        return self.communicators.join(trainer, member, more.pop("name", "team"), size, **more)

    def all_join(self, size: int, **more: Any) -> list[bytes]:
        """Trainers that are members, by rank."""
        trainers = [self.trainer(f"t{rank}") for rank in range(size)]
        futures = [self.join(each, size, **more) for each in trainers]
        assert [each.result(0) for each in futures] == list(range(size))
        return trainers

    def call(
        self, trainer: bytes, number: int, signature: Signature = BARRIER, *values: Any, seconds: float = 0.0
    ) -> Future[Exchange]:
        """Takes part in a collective; errors are in the future."""
        pieces = [Piece(Encoder(None).encode(value), np.empty(0, np.uint8)) for value in values]
        arrival = Arrival(pieces, None, sum(each.value.ByteSize() for each in pieces))
        if signature.kind == "all_reduce":
            arrival = Arrival((), values[0])
        try:
            return self.communicators.call(trainer, 1, number, signature, arrival, seconds)
        except Exception as error:
            future: Future[Exchange] = Future()
            future.set_exception(error)
            return future

    def break_connection(self, trainer: bytes) -> None:
        self.sessions[trainer] = self.now

    def connect(self, trainer: bytes) -> None:
        self.sessions[trainer] = None

    def end_session(self, trainer: bytes, lost: bool = True) -> None:
        del self.sessions[trainer]
        self.communicators.forget(trainer, lost)

    def wait(self, seconds: float) -> None:
        """Lets time pass."""
        until = self.now + seconds
        while self._timers and self._timers[0][0] <= until:
            self.now, _, do = heapq.heappop(self._timers)
            do()
        self.now = until

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left of any communicator."""
        found = self.communicators
        return not (found._members or found._formations.all() or found._present or found.nbytes)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._order), do))


def sends(signature: Signature, rank: int, size: int) -> list[str | int]:
    """What a member sends in a test: texts that name it."""
    if signature.kind == "all_reduce":
        return [rank]
    return [f"{rank}.{place}" for place in range(pieces_of(signature, rank, size))]
