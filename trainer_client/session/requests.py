"""Requests: from a message to a `Pending` result."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ps_wire.codec.payload import Buffer, PayloadReader, PayloadWriter
from ps_wire.runtime.scopes import current_scope
from ps_wire.v1.frames_pb2 import Frame, Reply, Request
from trainer_client.pending import Pending
from trainer_client.session.in_flight import InFlightRequest

if TYPE_CHECKING:
    from ps_wire.errors import PsError
    from trainer_client.session.session import Session

T = TypeVar("T")

DEFAULT = -1.0
"""Stands for the timeout that the client's settings give."""


def submit(
    session: Session,
    request: Request | Frame,
    payload: PayloadWriter | None,
    finish: Callable[[Reply, PayloadReader], T],
    timeout: float | None = DEFAULT,
) -> Pending[T]:
    """Sends a request at once, from any thread.

    Args:
        session: To whose owner.
        request: The message; or a frame that holds it already, which spares a hot path a copy.
        payload: The tensor bytes beside it.
        finish: Makes the result of the reply, in the thread that waits for it.
        timeout: Seconds the call may take; None for ever.
    """

    def done(reply: Reply | None, answer: Buffer | None, error: PsError | None, held: Sequence[object]) -> None:
        grants = Grants(session, reply.granted) if reply is not None and reply.granted else None

        def outcome(_: Sequence[object] = held) -> T:
            if reply is None:
                assert error is not None
                raise error
            if grants is not None:
                grants.take()
            return finish(reply, PayloadReader(answer))

        pending.resolve(outcome)

    chunks, nbytes = (payload.chunks, payload.nbytes) if payload is not None else ([], 0)
    seconds = session.settings.timeout if timeout == DEFAULT else timeout
    frame = request if isinstance(request, Frame) else Frame(request=request)
    scope = current_scope.get()
    if scope is not None:
        seconds = scope.within(seconds)
        frame.request.depth = scope.depth + 1
    in_flight = InFlightRequest(frame, chunks, nbytes, seconds, done)
    pending: Pending[T] = Pending(session.loop, lambda: session.cancel(in_flight))
    session.submit(in_flight)
    if scope is not None:
        scope.add(pending)
    return pending


class Grants:
    """The references that an answer hands out: given back, if nobody ever looks at the answer.

    Args:
        session: Where the objects are.
        object_ids: Which, once for every reference.
    """

    def __init__(self, session: Session, object_ids: Sequence[str]) -> None:
        ids = list(object_ids)

        def give_back() -> None:
            for object_id in ids:
                session.release(object_id)

        self._finalizer = weakref.finalize(self, give_back)
        self._finalizer.atexit = False

    def take(self) -> None:
        """Somebody looks at the answer, and has the references from now on."""
        self._finalizer.detach()


def nothing(reply: Reply, payload: PayloadReader) -> None:
    """For requests that have no result."""
