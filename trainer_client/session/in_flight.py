"""A request in flight: its frame, and the `Pending` result that the caller waits for."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ps_wire.codec.payload import NO_PAYLOAD, Buffer, PayloadReader
from ps_wire.operations import NOT_AWAITED
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.pending import Pending
from trainer_client.session.late_answers import AnsweredIn

if TYPE_CHECKING:
    import asyncio

    from ps_wire.codec.payload import PayloadWriter
    from ps_wire.runtime.failures import Failure
    from ps_wire.v1.frames_pb2 import Request
    from trainer_client.session.settings import Settings
    from trainer_client.session.watched import Watch

T = TypeVar("T")
Read = Callable[[Reply, PayloadReader], T]
"""Makes the result from a reply and its payload."""

_NO_FRAME: Final = Frame()

_places: Final = count()

_OF_PROGRAMS: Final = {
    *("create", "attach", "delete", "fetch", "set_requires_grad", "optimizer", "scheduler", "set_options"),
    *("step", "pull", "push", "state", "load_state"),
}
"""Operations, besides calls, that programs ask for. An error of theirs that nobody reads is reported."""


class Sender(Protocol):
    """What sends requests; see `Session`."""

    loop: asyncio.AbstractEventLoop
    owner: str
    losses: int
    restarts: int
    settings: Settings
    unread: weakref.WeakSet[Failure]

    def submit(self, frame: Frame | Request, payload: PayloadWriter | None, read: Read[T]) -> Pending[T]:
        """Sends a request."""

    def cancel(self, in_flight: InFlightRequest[Any]) -> None:
        """Nobody waits for a request any more."""

    def release(self, object_id: str, losses: int | None = None) -> None:
        """Gives a reference back, if the session was not lost more often since."""


class InFlightRequest(Pending[T]):
    """One request, and its result, which `read` makes in the thread that waits for it.

    Its payload must not change until the answer is there, because it may be sent again. Until then it `follows` earlier
    requests whose results, which stay on the owner, it needs; they have it among their `followers`. It is `answered` if
    there was no error. It has a number once it was sent, some milliseconds `later`, with another, if no caller waits.
    Its `place` is among all requests, in the order in which they were made.
    `counted` bytes count towards the limit of bytes in flight; the `deadline` is in seconds of the monotonic clock.
    """

    collects = False
    """Whether it is sent at the end of the turn of the event loop, or when a task waits for it."""

    # Defaults of the class, as those of `Pending`.
    chunks: Sequence[memoryview] = ()
    nbytes = 0
    number = 0
    counted = 0
    deadline = math.inf
    answered = False
    followers: Sequence[InFlightRequest[Any]] = ()
    staying: Any = None
    watch: Watch | None = None
    in_pass: Any = None
    """What has to join another session when it is sent there: a recorded call, or a pass."""

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
        self.place = next(_places)
        self.frame = frame
        if payload is not None:
            self.chunks, self.nbytes = payload.chunks, payload.nbytes
        self.timeout = timeout
        # Only calls are collected.
        self.later = not self.collects and frame.request.WhichOneof("operation") in NOT_AWAITED
        self.follows = follows
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

    def move_to(self, session: Sender) -> None:
        """Is about to be sent again, on this session, because its object moves."""
        self.number = 0
        if session is self._session:
            return
        read = self._read
        if isinstance(read, partial) and read.args and read.args[0] is self._session:
            self._read = partial(read.func, session, *read.args[1:], **read.keywords)
        if self.in_pass is not None:
            self.in_pass.join(session)
        self._session = session

    def answer(self, reply: Reply, payload: Buffer | None, held: Sequence[object] = ()) -> None:
        """Resolves it with a reply, on the session's loop. What is held lives until the result is read."""
        if self.watch is not None:
            self.watch.answered(reply)
        read = self._read
        if read is not None:
            if reply.granted or held:
                read = Granting(self._session, reply.granted, held, read)
            self.answered = True
            self._read, self.frame, self.chunks = None, _NO_FRAME, ()
            self.resolve(partial(read, reply, NO_PAYLOAD if payload is None else PayloadReader(payload)))

    def stayed(self, reply: Reply) -> None:
        """Notes that the owner has answered with a reply, and that the result stays there."""
        if self.watch is not None:
            self.watch.answered(reply)
        self.answered = True
        self.let_go()

    def fail(self, failure: Failure) -> None:
        """Resolves it with a failure, which may be that of other requests, too."""
        self.resolve(failure)
        self.let_go()

    def _failed(self, failure: Failure) -> None:
        if self.watch is not None:
            self.watch.failed(failure.error)
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


class Granting(Generic[T]):
    """Reads an answer that grants references to objects. They are given back if it is never read. If the session was
    lost before it is read, they belong to the session before."""

    def __init__(self, session: Sender, object_ids: Sequence[str], held: Sequence[object], read: Read[T]) -> None:
        self._held = held
        self._read = read
        self._answered_in = AnsweredIn(session, session.losses, session.restarts)
        self._finalizer = weakref.finalize(self, _give_back, session, list(object_ids), session.losses)
        self._finalizer.atexit = False

    def __call__(self, reply: Reply, payload: PayloadReader) -> T:
        self._finalizer.detach()
        with self._answered_in.being_read():
            return self._read(reply, payload)


def _give_back(session: Sender, object_ids: Sequence[str], losses: int) -> None:
    for object_id in object_ids:
        session.release(object_id, losses)
