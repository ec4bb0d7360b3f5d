"""Exchange: a request on its way to an owner, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ps_wire.codec.payload import Buffer
from ps_wire.errors import PsError
from ps_wire.v1.frames_pb2 import Frame, Reply

Done = Callable[[Reply | None, Buffer | None, PsError | None, Sequence[object]], None]
"""Called on the loop with a reply and its payload, or with an error; and with what the reply needs to be kept."""


class InFlightRequest:
    """One request.

    Args:
        frame: The request in its frame.
        chunks: Its payload, which must not change until the answer is there: it may be sent again.
        nbytes: Length of the payload.
        timeout: Seconds the caller will wait, or None.
        done: Called once with the outcome.

    Attributes:
        number: Its number in the session, once it was sent.
        counted: Bytes with which it counts among those that are in flight.
        finished: Whether nobody waits for it any more.
    """

    __slots__ = ("_done", "_timer", "chunks", "counted", "finished", "frame", "nbytes", "number", "timeout")

    def __init__(
        self, frame: Frame, chunks: Sequence[memoryview], nbytes: int, timeout: float | None, done: Done
    ) -> None:
        self.frame = frame
        self.chunks = chunks
        self.nbytes = nbytes
        self.timeout = timeout
        self.number = 0
        self.counted = 0
        self.finished = False
        self._done = done
        self._timer: asyncio.TimerHandle | None = None

    @property
    def operation(self) -> str:
        """Name of what is asked for."""
        return self.frame.request.WhichOneof("operation") or ""

    def expire_with(self, loop: asyncio.AbstractEventLoop, expired: Callable[[InFlightRequest], None]) -> None:
        """Has `expired` called when the time is up."""
        if self.timeout is not None:
            self._timer = loop.call_later(self.timeout, expired, self)

    def finish(
        self,
        reply: Reply | None = None,
        payload: Buffer | None = None,
        error: PsError | None = None,
        held: Sequence[object] = (),
    ) -> None:
        """Gives the outcome to whoever waits; later outcomes are ignored."""
        done = self._done
        if not self.abandon():
            done(reply, payload, error, held)

    def abandon(self) -> bool:
        """Nobody waits any more; says whether that was so before."""
        was, self.finished = self.finished, True
        # Who waits knows this request, in order to cancel it: they must not keep each other alive.
        self._done = _nobody
        if self._timer is not None:
            self._timer.cancel()
        return was


def _nobody(reply: Reply | None, payload: Buffer | None, error: PsError | None, held: Sequence[object]) -> None:
    pass
