"""One communicator: which of its members have arrived at which collective, and why it has ended.

A state machine without clock, network or torch. Not safe from several threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ps_wire.collectives import MOST_OPEN, Signature
from ps_wire.errors import InvalidArgumentError, OverloadedError, PsError, TooLargeError, UnavailableError
from ps_wire.limits import MAX_FRAME_BYTES
from ps_wire.number_set import SeenNumbers
from ps_wire.status.parts import CommunicatorStatus

if TYPE_CHECKING:
    from ps_service.memory.held import Share
    from ps_wire.codec.payload import Buffer
    from ps_wire.v1.values_pb2 import Value

_MOST_DONE: Final = 1024
"""Most numbers of complete collectives that are remembered above a gap."""

_MOST_AWAITED: Final = 16
"""Most members that a status names because others wait for them."""

_MOST_MESSAGE_BYTES: Final = MAX_FRAME_BYTES // 2
"""Most bytes that the values of one collective have besides their tensors. They have to fit into one answer."""


class Wait(NamedTuple):
    """How long a member waits for others: `seconds` (0: no limit), `until` a moment on the clock of the owner."""

    seconds: float
    until: float


_ENDLESS: Final = Wait(0.0, math.inf)


class Piece(NamedTuple):
    """A value on its way from one member to others. Offsets in the message count from the begin of the payload."""

    value: Value
    payload: Buffer


class Exchange(NamedTuple):
    """What a member gets: the values of others, in the order of their ranks, and the result of `all_reduce`."""

    pieces: Sequence[Piece]
    reduced: Any = None


@dataclass(slots=True, eq=False)
class Arrival:
    """A member at a collective, with what it sends: its value, or one for each other member by rank, in `pieces`.

    For `all_reduce` it is `value`, which is no message. `message_bytes` are those of the `nbytes` that are no tensors.
    The `share` counts them for the quotas of the member for as long as they wait.
    """

    pieces: Sequence[Piece]
    value: Any = None
    nbytes: int = 0
    message_bytes: int = 0
    wait: Wait = _ENDLESS
    future: Future[Exchange] = field(default_factory=Future)
    share: Share | None = None


@dataclass(slots=True, eq=False)
class Collective:
    """One collective, from the first arrival to the last, with the signature that the first member asked for."""

    number: int
    signature: Signature
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    nbytes: int = 0
    message_bytes: int = 0

    def __str__(self) -> str:
        return f"collective {self.number}, {self.signature}"


class Communicator:
    """The members of a communicator, and their open collectives, each complete when all members have arrived.

    The first failure ends the communicator: all that wait, and all that come later, get its error, so that no two
    members can have a different idea of what has happened. `ending` is why, with the type of that error. `gone` says by
    rank why a member will not come any more.
    """

    def __init__(
        self,
        name: str,
        sessions: Sequence[bytes],
        most_bytes: int,
        patience: float = 1.0,
        describe: Callable[[bytes], str] = bytes.hex,
    ) -> None:
        self.name = name
        self.sessions = sessions
        self.patience = patience
        self.open: dict[int, Collective] = {}
        self.nbytes = 0
        self.ending: PsError | None = None
        self.gone: dict[int, str] = {}
        self._most_bytes = most_bytes
        self._describe = describe
        self._done = SeenNumbers(_MOST_DONE)

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.sessions)

    def member(self, rank: int) -> str:
        """A member for messages."""
        return f"rank {rank} (trainer {self._describe(self.sessions[rank])})"

    def missing(self, collective: Collective) -> list[int]:
        """The ranks that have not arrived."""
        return [rank for rank in range(self.size) if rank not in collective.arrivals]

    def awaited(self) -> set[int]:
        """The ranks that others wait for."""
        return {rank for collective in self.open.values() for rank in self.missing(collective)}

    def status(self, present: int) -> CommunicatorStatus:
        """What the owner reports of it, and how many members have not left."""
        late = map(self.member, sorted(self.awaited())[:_MOST_AWAITED])
        why = "" if self.ending is None else str(self.ending)
        return CommunicatorStatus(self.name, self.size, present, len(self.open), tuple(late), self.nbytes, why)

    def arrive(self, rank: int, number: int, signature: Signature, arrival: Arrival) -> Collective | None:
        """A member arrives at a collective; returns it if all have arrived, and it is not open any more.

        A member that has arrived there before gets an `InvalidArgumentError`. Any other error ends the communicator.
        """
        if self.ending is not None:
            raise self.error()
        collective = self.open.get(number)
        if number < 1 or number in self._done or (collective is not None and rank in collective.arrivals):
            raise InvalidArgumentError(f"rank {rank} has taken part in collective {number} of {self.name!r} before")
        if collective is None:
            if len(self.open) >= MOST_OPEN:
                raise self._ended(
                    OverloadedError, f"{self.member(rank)} begins a collective while {MOST_OPEN} are open"
                )
            collective = self.open[number] = Collective(number, signature)
        if signature != collective.signature:
            first = self.member(next(iter(collective.arrivals)))
            raise self._ended(
                InvalidArgumentError,
                f"{self.member(rank)} calls {signature} as its collective {number}, where {first} calls "
                f"{collective.signature}; all members have to call the same ones in the same order",
            )
        collective.message_bytes += arrival.message_bytes
        if collective.message_bytes > _MOST_MESSAGE_BYTES:
            raise self._ended(
                TooLargeError,
                f"the values of {collective} have more than {_MOST_MESSAGE_BYTES:,} bytes besides tensors; send large "
                "data as tensors",
            )
        if self.nbytes + arrival.nbytes > self._most_bytes:
            raise self._ended(
                TooLargeError,
                f"the values of {collective} have more than {self._most_bytes:,} bytes together; send less at a time, "
                "or raise max_message_bytes on the owner",
            )
        collective.arrivals[rank] = arrival
        collective.nbytes += arrival.nbytes
        self.nbytes += arrival.nbytes
        for other, why in self.gone.items():
            if other not in collective.arrivals:
                raise self._ended(UnavailableError, why)
        if len(collective.arrivals) < self.size:
            return None
        del self.open[number]
        self._done.add(number)
        self.nbytes -= collective.nbytes
        return collective

    def part(self, rank: int, why: str) -> None:
        """A member will not come any more. The communicator ends once another one waits for it."""
        self.gone.setdefault(rank, why)
        if self.ending is None and rank in self.awaited():
            self.end(UnavailableError, self.gone[rank])

    def end(self, kind: type[PsError], why: str) -> None:
        """Ends the communicator. `failed` returns the waits that this ends."""
        if self.ending is None:
            self.ending = kind(why)
            self.nbytes = 0

    def failed(self) -> Iterator[Future[Exchange]]:
        """Once it has ended, the waits that have no result; each once."""
        if self.ending is not None:
            ended, self.open = self.open, {}
            for collective in ended.values():
                for arrival in collective.arrivals.values():
                    yield arrival.future

    def error(self) -> PsError:
        """The error of all calls after its end."""
        assert self.ending is not None
        return type(self.ending)(f"the communicator {self.name!r} has ended, make it again: {self.ending}")

    def _ended(self, kind: type[PsError], why: str) -> PsError:
        self.end(kind, why)
        return self.error()


def pieces_of(signature: Signature, rank: int, size: int) -> int:
    """How many values a member sends for others."""
    kind, is_root = signature.kind, rank == signature.root
    if kind == "all_gather":
        return 1
    if kind == "gather":
        return 0 if is_root else 1
    if kind == "broadcast":
        return 1 if is_root else 0
    return size - 1 if kind == "scatter" and is_root else 0


def exchanged(rank: int, collective: Collective) -> Exchange:
    """What a member gets of a complete collective without a reduction. Its own value is not sent back."""
    kind, root, _ = collective.signature
    arrivals = collective.arrivals
    if kind == "scatter":
        return Exchange(() if rank == root else [arrivals[root].pieces[rank - (rank > root)]])
    if kind == "gather" and rank != root:
        return Exchange(())
    return Exchange([piece for other in sorted(arrivals) if other != rank for piece in arrivals[other].pieces])
