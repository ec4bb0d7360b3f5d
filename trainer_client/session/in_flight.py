"""A request in flight: its frame, and the `Pending` result that the caller waits for."""

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
"""Makes the result from a reply and its payload."""

_NO_FRAME: Final = Frame()


class InFlightRequest(Pending[T]):
    """One request, and its result.

    Args:
        session: The session that it is sent on.
        frame: The request in its frame.
        chunks: Its payload. It must not change until the answer is there, because it may be sent again.
        nbytes: Size of the payload, in bytes.
        timeout: Seconds that the caller waits; None is no limit.
        read: Makes the result, in the thread that waits for it.

    Attributes:
        number: Its number in the session, once it was sent.
        later: Whether no caller waits for its answer, so that it may be sent some milliseconds later, with another.
        counted: Bytes that count towards the limit of bytes in flight.
        deadline: Its deadline, in seconds of the monotonic clock.
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
        """Name of its operation."""
        return self.frame.request.WhichOneof("operation") or ""

    def answer(self, reply: Reply, payload: Buffer | None, held: Sequence[object] = ()) -> None:
        """Resolves it with a reply. Must be called on the session's event loop, as the two below.

        Args:
            reply: The reply.
            payload: The payload of the reply.
            held: Objects to keep alive as long as the result is not read.
        """
        read = self._read
        if read is not None:
            if reply.granted or held:
                read = partial(_read_with_references, Grants(self._session, reply.granted), held, read)
            self._read, self.frame, self.chunks = None, _NO_FRAME, ()
            self.resolve(partial(read, reply, NO_PAYLOAD if payload is None else PayloadReader(payload)))

    def fail(self, error: PsError) -> None:
        """Resolves it with an error."""
        self.resolve(raiser(error))
        self.let_go()

    def let_go(self) -> None:
        """Drops the frame and the payload, which the result does not need."""
        self._read, self.frame, self.chunks = None, _NO_FRAME, ()

    def _when_cancelled(self) -> None:
        self._session.cancel(self)


class Grants:
    """The references that an answer grants. They are given back if the answer is never read.

    Args:
        session: The session with the owner of the objects.
        object_ids: Ids of the objects, once for each reference.
    """

    def __init__(self, session: Session, object_ids: Sequence[str]) -> None:
        self._finalizer = weakref.finalize(self, _give_back, session, list(object_ids))
        self._finalizer.atexit = False

    def take(self) -> None:
        """Passes the references to the result, because the answer is read now."""
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
    """Reads a reply without a result."""
