"""A request in flight: its frame, and the `Pending` result that the caller waits for."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ps_wire.codec.payload import NO_PAYLOAD, Buffer, PayloadReader
from ps_wire.operations import NOT_AWAITED
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.pending import Pending
from trainer_client.session.watched import Watched, begin

if TYPE_CHECKING:
    import asyncio

    from ps_wire.codec.payload import PayloadWriter
    from ps_wire.runtime.failures import Failure
    from ps_wire.v1.frames_pb2 import Request
    from trainer_client.session.settings import Settings

T = TypeVar("T")
Read = Callable[[Reply, PayloadReader], T]
"""Makes the result from a reply and its payload."""

_NO_FRAME: Final = Frame()

_OF_PROGRAMS: Final = {
    *("create", "attach", "delete", "fetch", "set_requires_grad", "optimizer", "scheduler", "set_options"),
    *("step", "pull", "push", "state", "load_state"),
}
"""Operations, besides calls, that programs ask for. An error of theirs that nobody reads is reported."""

_OF_GROUPS: Final = {"register", "lookup", "members", "rendezvous"}
"""Operations of the directory, which finds the number of an owner."""


class Sender(Protocol):
    """What sends requests; see `Session`."""

    loop: asyncio.AbstractEventLoop
    owner: str
    settings: Settings
    unread: weakref.WeakSet[Failure]

    def submit(self, frame: Frame | Request, payload: PayloadWriter | None, read: Read[T]) -> Pending[T]:
        """Sends a request."""

    def cancel(self, in_flight: InFlightRequest[Any]) -> None:
        """Nobody waits for a request any more."""

    def release(self, object_id: str) -> None:
        """Gives a reference back."""


class InFlightRequest(Pending[T]):
    """One request, and its result.

    Args:
        payload: Its tensor bytes. They must not change until the answer is there, because it may be sent again.
        timeout: Seconds that the caller waits; None is no limit.
        read: Makes the result, in the thread that waits for it.
        follows: Earlier requests whose results, which stay on the owner, it needs.

    Attributes:
        chunks: Its payload.
        follows: As the argument, until it has its answer.
        followers: The requests that follow it, until it has its answer.
        answered: Whether the owner has answered it without an error.
        collected: Whether it is to be sent with others, soon.
        staying: For a call, its result that stays on the owner.
        number: Its number in the session, once it was sent.
        later: Whether no caller waits for its answer, so that it may be sent some milliseconds later, with another.
        counted: Bytes that count towards the limit of bytes in flight.
        deadline: Its deadline, in seconds of the monotonic clock.
    """

    __slots__ = (
        *("_read", "_session", "answered", "chunks", "collected", "counted", "deadline", "followers", "follows"),
        *("frame", "later", "nbytes", "number", "staying", "timeout"),
    )

    collects = False
    """Whether it is sent at the end of the turn of the event loop, or when a task waits for it."""

    def __init__(
        self,
        session: Sender,
        frame: Frame,
        payload: PayloadWriter | None,
        timeout: float | None,
        read: Read[T],
        follows: Sequence[InFlightRequest[Any]] = (),
    ) -> None:
        super().__init__(session.loop)
        self.frame = frame
        self.chunks: Sequence[memoryview] = ()
        self.nbytes = 0
        if payload is not None:
            self.chunks, self.nbytes = payload.chunks, payload.nbytes
        self.timeout = timeout
        # Only calls are collected.
        self.later = not self.collects and frame.request.WhichOneof("operation") in NOT_AWAITED
        self.number = 0
        self.counted = 0
        self.deadline = math.inf
        self.answered = False
        self.collected = False
        self.follows = follows
        self.followers: Sequence[InFlightRequest[Any]] = ()
        self.staying: Any = None
        self._session = session
        self._read: Read[T] | None = read

    @property
    def session(self) -> Sender:
        """The session that it is sent on."""
        return self._session

    @property
    def operation(self) -> str:
        """Name of its operation."""
        return self.frame.request.WhichOneof("operation") or ""

    def answer(self, reply: Reply, payload: Buffer | None, held: Sequence[object] = ()) -> None:
        """Resolves it with a reply; objects that are `held` live as long as the result is not read.

        Must be called on the session's event loop, as the two below.
        """
        read = self._read
        if read is not None:
            if reply.granted or held:
                read = partial(_read_with_references, Grants(self._session, reply.granted), held, read)
            self.answered = True
            self._read, self.frame, self.chunks = None, _NO_FRAME, ()
            self.resolve(partial(read, reply, NO_PAYLOAD if payload is None else PayloadReader(payload)))

    def stayed(self, reply: Reply) -> None:
        """Notes that the owner has answered with a reply, and that the result stays there."""
        self.answered = True
        self.let_go()

    def fail(self, failure: Failure) -> None:
        """Resolves it with a failure, which may be that of other requests, too."""
        self.resolve(failure)
        self.let_go()

    def _failed(self, failure: Failure) -> None:
        super()._failed(failure)
        self._session.unread.add(failure)

    def let_go(self) -> None:
        """Drops the frame and the payload, which the result does not need."""
        self._read, self.frame, self.chunks = None, _NO_FRAME, ()

    @property
    def title(self) -> str:
        return self.operation

    @property
    def subject(self) -> str:
        if self.origin is not None:
            return super().subject
        return f"{self.operation} on owner {self._session.owner!r}" if self.operation in _OF_PROGRAMS else ""

    @property
    def reason(self) -> str:
        """Why it follows another request, as a clause about that one."""
        return f"which this {self.operation} waits for"

    def part(self) -> tuple[Sequence[InFlightRequest[Any]], Sequence[InFlightRequest[Any]]]:
        """Removes and returns the requests that it follows, and those that follow it."""
        parted = self.follows, self.followers
        self.follows, self.followers = (), ()
        return parted

    @property
    def ended_in(self) -> BaseException | None:
        """The error that it has ended in, if it has."""
        return None if self.answered else self.error

    @property
    def is_idle(self) -> bool:
        """Whether it has no answer, and no caller or other request needs one any more."""
        return not (self.settled or self.answered or self._is_used())

    def _is_used(self) -> bool:
        return super()._is_used() or not all(each.settled for each in self.followers)

    def _when_cancelled(self) -> None:
        self._session.cancel(self)


class WatchedRequest(Watched, InFlightRequest[T]):
    """A request, other than a call, that is watched."""

    __slots__ = ("watch",)

    @classmethod
    def of(cls, session: Sender, frame: Frame, *args: Any) -> InFlightRequest[T]:
        """A request, which is watched if its caller waits for it. Arguments as for `InFlightRequest`."""
        operation = frame.request.WhichOneof("operation") or ""
        if operation not in NOT_AWAITED and operation not in _OF_GROUPS:
            found = begin(session.settings, session.owner, frame, operation)
            if found is not None:
                made = cls(session, frame, *args)
                made.watch = found
                return made
        return InFlightRequest(session, frame, *args)


class Grants:
    """The references that an answer grants, by the ids of their objects. They are given back if it is never read."""

    def __init__(self, session: Sender, object_ids: Sequence[str]) -> None:
        self._finalizer = weakref.finalize(self, _give_back, session, list(object_ids))
        self._finalizer.atexit = False

    def take(self) -> None:
        """Passes the references to the result, because the answer is read now."""
        self._finalizer.detach()


def _give_back(session: Sender, object_ids: Sequence[str]) -> None:
    for object_id in object_ids:
        session.release(object_id)


def _read_with_references(
    grants: Grants, held: Sequence[object], read: Read[T], reply: Reply, payload: PayloadReader
) -> T:
    grants.take()
    return read(reply, payload)
