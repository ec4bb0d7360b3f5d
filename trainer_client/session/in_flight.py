"""InFlightRequest: a request on its way to an owner, and its result, for which the caller waits."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ps_wire.codec.payload import NO_PAYLOAD, Buffer, PayloadReader
from ps_wire.operations import NOT_AWAITED
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.pending import Pending, raiser

if TYPE_CHECKING:
    from ps_wire.errors import PsError
    from trainer_client.session.session import Session

T = TypeVar("T")
Read = Callable[[Reply, PayloadReader], T]
"""Makes the result of a reply and its payload."""

_NO_FRAME: Final = Frame()


class InFlightRequest(Pending[T]):
    """One request, and its result.

    Args:
        session: To whose owner.
        frame: The request in its frame.
        chunks: Its payload, which must not change until the answer is there: it may be sent again.
        nbytes: Length of the payload.
        timeout: Seconds the caller will wait, or None.
        read: Makes the result, in the thread that waits for it.

    Attributes:
        number: Its number in the session, once it was sent.
        later: Whether its answer is not awaited: it may stay for some milliseconds, to travel with another.
        counted: Bytes with which it counts among those that are in flight.
        deadline: When its time is up, in seconds of the monotonic clock.
    """

    __slots__ = ("_read", "_session", "chunks", "counted", "deadline", "frame", "later", "nbytes", "number", "timeout")

    def __init__(
        self,
        session: Session,
        frame: Frame,
        chunks: Sequence[memoryview],
        nbytes: int,
        timeout: float | None,
        read: Read[T],
    ) -> None:
        super().__init__(session.loop)
        self.frame = frame
        self.chunks = chunks
        self.nbytes = nbytes
        self.timeout = timeout
        self.later = frame.request.WhichOneof("operation") in NOT_AWAITED
        self.number = 0
        self.counted = 0
        self.deadline = math.inf
        self._session = session
        self._read: Read[T] | None = read

    @property
    def operation(self) -> str:
        """Name of what is asked for."""
        return self.frame.request.WhichOneof("operation") or ""

    def answer(self, reply: Reply, payload: Buffer | None, held: Sequence[object] = ()) -> None:
        """The reply is there. Must be called on the session's event loop, as the two below.

        Args:
            reply: The reply.
            payload: The bytes beside it.
            held: What the result needs to be kept.
        """
        read = self._read
        if read is not None:
            if reply.granted or held:
                read = partial(_read_with_references, Grants(self._session, reply.granted), held, read)
            self._read, self.frame, self.chunks = None, _NO_FRAME, ()
            self.resolve(partial(read, reply, NO_PAYLOAD if payload is None else PayloadReader(payload)))

    def fail(self, error: PsError) -> None:
        """There will be no reply."""
        self.resolve(raiser(error))
        self.let_go()

    def let_go(self) -> None:
        """Lets go of what it was made from, as far as its result does not need it."""
        self._read, self.frame, self.chunks = None, _NO_FRAME, ()

    def _when_cancelled(self) -> None:
        self._session.cancel(self)


class Grants:
    """The references that an answer hands out: given back, if the answer is never looked at.

    Args:
        session: Where the objects are.
        object_ids: Which, once for every reference.
    """

    def __init__(self, session: Session, object_ids: Sequence[str]) -> None:
        self._finalizer = weakref.finalize(self, _give_back, session, list(object_ids))
        self._finalizer.atexit = False

    def take(self) -> None:
        """The answer is looked at, and what is made of it has the references from now on."""
        self._finalizer.detach()


def _give_back(session: Session, object_ids: Sequence[str]) -> None:
    for object_id in object_ids:
        session.release(object_id)


def _read_with_references(
    grants: Grants, held: Sequence[object], read: Read[T], reply: Reply, payload: PayloadReader
) -> T:
    grants.take()
    return read(reply, payload)


def nothing(reply: Reply, payload: PayloadReader) -> None:
    """Reads the reply to a request that has no result."""
