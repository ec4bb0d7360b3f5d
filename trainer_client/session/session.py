"""Session: the numbered requests of one trainer to one owner.

Requests are kept until they are answered. When the stream breaks it is opened again, and what was not answered is sent
again; the owner runs no mutating request twice. All methods but `submit`, `cancel` and `release` must be called on the
session's event loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ps_wire import errors
from ps_wire.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    PsError,
    SessionLostError,
    TooLargeError,
)
from ps_wire.limits import MAX_FRAME_BYTES, PROTOCOL
from ps_wire.runtime import forks
from ps_wire.runtime.scopes import current_scope
from ps_wire.v1.frames_pb2 import Cancel, Confirm, Frame, Goodbye, Hello, Reply, Request, Welcome
from ps_wire.v1.operations_pb2 import ReleaseRequest
from trainer_client.pending import DEFAULT
from trainer_client.session.borrowing import Borrowing
from trainer_client.session.confirmations import Confirmations
from trainer_client.session.in_flight import InFlightRequest, nothing
from trainer_client.session.link import Link
from trainer_client.session.window import RequestWindow

if TYPE_CHECKING:
    from ps_wire.codec.payload import Buffer, PayloadWriter
    from ps_wire.connections.assembler import Message
    from ps_wire.connections.connection import Connector
    from ps_wire.connections.outbox import Outbox
    from ps_wire.refs import Ref
    from trainer_client.handles.references import RRef
    from trainer_client.pending import Pending
    from trainer_client.session.borrowing import Others
    from trainer_client.session.in_flight import Read
    from trainer_client.session.settings import Settings

T = TypeVar("T")


class Session:
    """One trainer on one owner.

    Args:
        connector: Leads to the owner.
        trainer: The trainer's 16 random bytes.
        settings: How patient to be.
        others: The client's other owners.
        expected: The owner's name, if that is known; another one refuses the session.

    Attributes:
        owner: The owner's name, known once the session is open.
        address: Where it listens.
        trainer: The trainer's 16 random bytes.
        loop: Its event loop.
        losses: How often the owner has forgotten it, and with it every reference.
        restarts: How often the owner had another state than before, because it started anew.
    """

    def __init__(
        self,
        connector: Connector,
        trainer: bytes,
        settings: Settings,
        others: Others | None = None,
        expected: str = "",
    ) -> None:
        self.losses = 0
        self.restarts = 0
        self._expected = expected
        self._when_lost: Callable[[], None] = _do_nothing
        self.owner = ""
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        forks.belongs_here(self.loop)
        self.trainer = trainer
        self.address = connector.address
        self._thread = threading.get_ident()
        self._link = Link(connector, settings, self)
        self._welcome: Welcome | None = None
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._closed: PsError | None = None
        self._window = RequestWindow()
        self._max_message_bytes: float = math.inf
        self._given_up: set[int] = set()
        self._outbox: Outbox | None = None
        self._confirmations = Confirmations(self.loop, self._confirm)
        self._borrowing = Borrowing(others, self._finish)
        self._released: deque[str] = deque()
        self._releasing = False

    async def open(self) -> None:
        """Connects, and keeps the connection up from then on.

        Raises:
            UnavailableError: The owner cannot be reached in time.
            InvalidArgumentError: It speaks another protocol.
        """
        self._link.start()
        await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Says goodbye, so that the owner frees what this trainer held. Again, or in a fork, it does nothing."""
        if forks.is_foreign(self.loop):
            return
        if self._closed is None and self._outbox is not None:
            self._outbox.put(Frame(goodbye=Goodbye()))
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._outbox.flushed()
        self._borrowing.stop()
        if self._closed is None:
            self._end(ClosedError("this client is closed"))
        await self._link.stop()

    def submit(
        self,
        message: Request | Frame,
        payload: PayloadWriter | None,
        read: Read[T],
        timeout: float | None = DEFAULT,
    ) -> Pending[T]:
        """Sends a request at once. May be called from any thread.

        Args:
            message: The request; or a frame that holds it already, which spares a hot path a copy.
            payload: The tensor bytes beside it.
            read: Makes the result of the reply, in the thread that waits for it.
            timeout: Seconds the call may take; None for ever.
        """
        frame = message if isinstance(message, Frame) else Frame(request=message)
        seconds = self.settings.timeout if timeout == DEFAULT else timeout
        scope = current_scope.get()
        if scope is not None:
            seconds = scope.within(seconds)
            frame.request.depth = scope.depth + 1
        chunks, nbytes = (payload.chunks, payload.nbytes) if payload is not None else ((), 0)
        in_flight = InFlightRequest(self, frame, chunks, nbytes, seconds, read)
        if threading.get_ident() == self._thread and not forks.is_foreign(self.loop):
            self._begin(in_flight)
        else:
            self._on_loop(self._begin, in_flight)
        if scope is not None:
            scope.add(in_flight)
        return in_flight

    def cancel(self, in_flight: InFlightRequest[Any]) -> None:
        """Gives a request up and tells the owner. May be called from any thread."""
        self._on_loop(self._give_up, in_flight)

    def release(self, object_id: str) -> None:
        """Gives a reference back, some time soon. May be called from any thread, also by the garbage collector."""
        if forks.is_foreign(self.loop):
            # The parent has its own handle, and gives it back itself.
            return
        self._released.append(object_id)
        if not self._releasing:
            self._releasing = True
            # The loop may be gone, and with it the session and everything it held.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._flush_released)

    def borrowed(self, ref: Ref) -> RRef:
        """The handle of another owner's object that an answer hands out.

        Raises:
            ForeignHandleError: This client knows no other owners.
        """
        return self._borrowing.held(ref)

    def when_lost(self, do: Callable[[], None]) -> None:
        """Has something done, on the loop, whenever the owner has forgotten the session, and when it is given up."""
        self._when_lost = do

    @property
    def state(self) -> str:
        """For people: connected, disconnected or closed."""
        if self._closed is not None or forks.is_foreign(self.loop):
            return "closed"
        return "connected" if self._outbox is not None else "disconnected"

    def __repr__(self) -> str:
        return f"<Session with {self.owner or '?'} at {self.address}, {self.state}>"

    # What the link tells

    def hello(self) -> Hello:
        known = self._welcome.incarnation if self._welcome is not None else ""
        expected = self.owner or self._expected
        hello = Hello(protocol=PROTOCOL, trainer=self.trainer, incarnation=known, owner=expected)
        hello.unanswered.extend((*self._window.unanswered, *self._given_up))
        return hello

    def connected(self, welcome: Welcome, outbox: Outbox) -> None:
        if self._welcome is not None and not welcome.resumed:
            self.losses += 1
            self.restarts += self._welcome.incarnation != welcome.incarnation
            self._fail(_lost(self._welcome, welcome))
            self._confirmations.clear()
            self._given_up.clear()
            self.loop.call_soon(self._when_lost)
        self._welcome = welcome
        self._window.max_requests, self._window.max_bytes = welcome.max_in_flight, welcome.max_session_bytes
        self._max_message_bytes = welcome.max_message_bytes or math.inf
        self.owner = welcome.owner
        self._outbox = outbox
        # First of all: until the owner knows, they count among those that are in flight.
        for number in self._given_up:
            outbox.put(Frame(number=number, cancel=Cancel()))
        for each in self._window.unanswered.values():
            outbox.put(each.frame, each.chunks, each.nbytes, each.later)
        if not self._opened.done():
            self._opened.set_result(None)

    def disconnected(self) -> None:
        self._outbox = None

    def received(self, message: Message) -> None:
        frame, payload, _ = message
        body = frame.WhichOneof("body")
        if body == "waiting":
            self._are_waiting(frame.waiting.numbers)
        elif body != "reply":
            raise InvalidArgumentError("a trainer expects replies only")
        elif frame.reply.borrowed and frame.number in self._window.unanswered:
            self._borrowing.begin(frame.number, frame.reply, payload)
        else:
            self._finish(frame.number, frame.reply, payload)

    def _are_waiting(self, numbers: Iterable[int]) -> None:
        """What the owner does for these requests waits for others, which must find space."""
        for number in numbers:
            in_flight = self._window.unanswered.get(number)
            if in_flight is not None:
                self._window.discount(in_flight)
        self._send_waiting()

    def gave_up(self, error: PsError) -> None:
        self._end(error)
        if not self._opened.done():
            self._opened.set_exception(error)
        else:
            self.loop.call_soon(self._when_lost)

    # Requests

    def _on_loop(self, function: Callable[[InFlightRequest[Any]], None], in_flight: InFlightRequest[Any]) -> None:
        if forks.is_foreign(self.loop):
            in_flight.fail(forks.refusal())
            return
        if threading.get_ident() == self._thread:
            function(in_flight)
            return
        try:
            self.loop.call_soon_threadsafe(function, in_flight)
        except RuntimeError:
            in_flight.fail(ClosedError("this client is closed, and so is its event loop"))

    def _begin(self, in_flight: InFlightRequest[Any]) -> None:
        size = in_flight.frame.ByteSize()
        if self._closed is not None:
            in_flight.fail(self._closed)
            return
        if in_flight.nbytes > self._max_message_bytes or size > MAX_FRAME_BYTES:
            in_flight.fail(self._too_large(in_flight.nbytes, size))
            return
        if in_flight.timeout is not None:
            in_flight.timer = self.loop.call_later(in_flight.timeout, self._expire, in_flight)
        if self._window.admit(in_flight):
            self._send(in_flight)

    def _too_large(self, nbytes: int, size: int) -> TooLargeError:
        if nbytes > self._max_message_bytes:
            return TooLargeError(
                f"the request has {nbytes:,} bytes of tensors; owner {self.owner!r} takes "
                f"{self._max_message_bytes:,}. Send them in smaller pieces, or raise max_message_bytes there"
            )
        return TooLargeError(
            f"the request has {size:,} bytes beside its tensors; {MAX_FRAME_BYTES:,} are allowed. "
            "Send large data as tensors"
        )

    def _send(self, in_flight: InFlightRequest[Any]) -> None:
        """Sends a request that has its number."""
        frame = in_flight.frame
        if in_flight.timeout is not None:
            frame.request.timeout_seconds = in_flight.timeout
        if self._confirmations.numbers:
            self._confirmations.go_with(frame.request)
        if self._outbox is not None:
            self._outbox.put(frame, in_flight.chunks, in_flight.nbytes, in_flight.later)

    def _send_waiting(self) -> None:
        for in_flight in self._window.due():
            self._send(in_flight)

    def _give_up(self, in_flight: InFlightRequest[Any]) -> None:
        in_flight.let_go()
        self._forget(in_flight)

    def _expire(self, in_flight: InFlightRequest[Any]) -> None:
        if in_flight.done():
            return
        self._forget(in_flight)
        where = f"owner {self.owner!r}" + ("" if self._outbox is not None else ", to which there is no connection,")
        in_flight.fail(
            DeadlineExceededError(f"{in_flight.operation}: no answer from {where} within {in_flight.timeout:g} s")
        )

    def _forget(self, in_flight: InFlightRequest[Any]) -> None:
        if self._window.take(in_flight.number) is not None:
            # The owner answers all the same, and says with that what it had handed out.
            self._given_up.add(in_flight.number)
            if self._outbox is not None:
                self._outbox.put(Frame(number=in_flight.number, cancel=Cancel()))
        self._send_waiting()

    def _finish(self, number: int, reply: Reply, payload: Buffer | None, held: Sequence[object] = ()) -> None:
        self._confirmations.add(number, 0 if payload is None else len(payload))
        in_flight = self._window.take(number)
        if in_flight is None:
            if number in self._given_up:
                # What it hands out is not wanted any more. An answer that comes twice is no such.
                self._given_up.discard(number)
                for object_id in reply.granted:
                    self.release(object_id)
            return
        if reply.HasField("error"):
            in_flight.fail(errors.from_message(reply.error))
        else:
            in_flight.answer(reply, payload, held)
        if self._window.waiting or self._window.large:
            self._send_waiting()

    def _end(self, error: PsError) -> None:
        """Ends the session, and every request with the error."""
        self._closed = error
        self._confirmations.stop()
        self._fail(error)

    def _fail(self, error: PsError) -> None:
        """Ends every request with the error."""
        for in_flight in self._window.clear():
            in_flight.fail(error)

    # News for the owner

    def _confirm(self, numbers: Sequence[int]) -> bool:
        if self._outbox is None:
            return False
        self._outbox.put(Frame(confirm=Confirm(numbers=numbers)))
        return True

    def _flush_released(self) -> None:
        self._releasing = False
        if not self._released or self._closed is not None:
            return
        object_ids = [self._released.popleft() for _ in range(len(self._released))]
        frame = Frame(request=Request(release=ReleaseRequest(object_ids=object_ids)))
        # Not with `submit`: it belongs to no request for which the code here may run.
        self._begin(InFlightRequest(self, frame, (), 0, None, nothing))


def _lost(before: Welcome, now: Welcome) -> SessionLostError:
    why = "it has restarted" if before.incarnation != now.incarnation else now.why_lost or "the lease had run out"
    return SessionLostError(
        f"owner {now.owner!r} no longer knows this session: {why}. Whether the request ran is not known; "
        "attach to named objects again and repeat the pass"
    )


def _do_nothing() -> None:
    """For sessions that nobody wants to know more of."""
