"""A session sends the numbered requests of one trainer to one owner.

It keeps requests until they are answered. When the stream breaks, the session opens it again and repeats the requests
without an answer; the owner runs no mutating request twice. All methods but `submit`, `cancel` and `release` must be
called on the session's event loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ps_wire.errors import ClosedError, InvalidArgumentError, PsError, UnavailableError, to_message
from ps_wire.limits import GIVEN_UP, PROTOCOL
from ps_wire.runtime import forks
from ps_wire.runtime.failures import Failure
from ps_wire.runtime.latency import Latencies
from ps_wire.runtime.noop import noop
from ps_wire.runtime.scopes import current_scope
from ps_wire.v1.frames_pb2 import Draining, Frame, Goodbye, Hello, Request, Welcome
from ps_wire.v1.operations_pb2 import ReleaseRequest
from trainer_client.pending import DEFAULT
from trainer_client.session.held_up import passes_of
from trainer_client.session.in_flight import InFlightRequest
from trainer_client.session.leaving import opened
from trainer_client.session.link import Link
from trainer_client.session.losses import lost
from trainer_client.session.moves import Moves
from trainer_client.session.programs import LONGEST_NAME, program_name
from trainer_client.session.references import Borrowing
from trainer_client.session.requests import Requests
from trainer_client.session.watched import begin_operation, is_profiled

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadWriter
    from ps_wire.connections.assembler import Assembler
    from ps_wire.connections.connection import Connector
    from ps_wire.connections.frames import Packet
    from ps_wire.connections.outbox import Outbox
    from ps_wire.refs import ContextId, Ref
    from trainer_client.session.in_flight import Read
    from trainer_client.session.references import Others
    from trainer_client.session.settings import Settings

T = TypeVar("T")

_GOODBYE_SECONDS: Final = 1.0
"""How long the end of a session waits until its goodbye is written."""


class Session:
    """The session of one trainer, known by 16 random bytes, with one owner. One that has another name refuses it.

    The owner's name is known once the session is open. `losses` counts how often the owner has ended the session, and
    with it all references, `lost_pass` is the last pass that had begun before, and `restarts` counts how often it has
    restarted from an earlier state. It is draining if it is connected and the owner drains. `unread` has the failures
    of its requests that are not garbage yet, and `backwards` how long the backwards of calls take on the owner, by
    object and method. `is_watched` says whether requests that this thread makes now stand in a profile or in a trace.
    `begins_anew`: an earlier one was given up.
    """

    def __init__(
        self,
        connector: Connector,
        trainer: bytes,
        settings: Settings,
        others: Others | None = None,
        expected: str = "",
    ) -> None:
        self.losses = self.lost_pass = self.restarts = 0
        self.is_draining = False
        self.unread: weakref.WeakSet[Failure] = weakref.WeakSet()
        self.backwards: Latencies[tuple[str, str]] = Latencies(1024)
        self.is_watched: Callable[[], bool] = is_profiled if settings.tracing is None else lambda: True
        self._expected = expected
        self.begins_anew = False
        self._when_lost: Callable[[], None] = noop
        self.owner = ""
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        forks.belongs_here(self.loop)
        self.trainer = trainer
        self._connector = connector
        self._was_at = ""  # when the last stream opened
        self._thread = threading.get_ident()
        self._link = Link(connector, settings, self)
        self._welcome: Welcome | None = None
        # Set while it is connected, and once it is closed.
        self._settled = asyncio.Event()
        self.requests = Requests(self.loop, self.release, settings.held_up.changed)
        # Whether the last attempt to open a stream again has failed.
        self._is_unreached = False
        self._told_held_up: set[ContextId] = set()
        # The last pass that had begun when the stream broke.
        self._last_pass = 0
        settings.held_up.add(self)
        self._borrowing = Borrowing(others, self.requests.finish)
        self.moves = Moves(self, others)
        self.moved = self.moves.objects
        self.requests.redirect = self.moves.redirect
        # The objects of references to give back, and whether that has begun.
        self._released: deque[tuple[str, int]] = deque()
        self._is_releasing = False
        forks.put_away_in_children(self)

    async def open(self) -> None:
        """Connects, and again each time it breaks. `UnavailableError` if there is no owner in time."""
        opened(self)
        self._link.start()
        await self.settled()

    async def settled(self) -> None:
        """Waits until it is connected. Raises why it was closed, if it was."""
        await self._settled.wait()
        if self.requests.closed is not None:
            raise self.requests.closed

    @property
    def follows(self) -> bool:
        """Whether the owner is looked for each time that the stream breaks, so that it may move."""
        return self._link.follows

    @property
    def address(self) -> str:
        """Where the owner is, or was looked for last."""
        return self._connector.address

    def _begin_again(self) -> None:
        self._settled.clear()
        self.settings.held_up.add(self)
        self._link = Link(self._connector, self.settings, self)
        self._link.start()

    async def close(self, fails: bool = False) -> None:
        """Ends the session; the owner frees what this trainer held. Does nothing the second time, and in a fork.

        Failures that nobody has read are reported now, because a program that ends may never free them. Not if it
        `fails`: the exception that ends it says more than requests without an answer.
        """
        if forks.is_foreign(self.loop):
            return
        requests = self.requests
        requests.when_wanted = None
        requests.flush()
        if requests.closed is None and requests.outbox is not None:
            requests.outbox.put(Frame(goodbye=Goodbye()))
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_SECONDS):
                    await requests.outbox.flushed()
        self._borrowing.stop()
        self.settings.held_up.remove(self)
        if requests.closed is None:
            requests.end(ClosedError("this client is closed"), fails)
        self.moves.stop(requests.closed or ClosedError("this client is closed"))
        self._settled.set()
        await self._link.stop()
        if self.unread:
            await asyncio.sleep(0)  # tasks that wait for a result read it first
            for failure in list(self.unread):
                if fails:
                    failure.read()
                failure.report()

    async def give_up(self, error: PsError) -> None:
        """Ends the session without its owner, which cannot be reached any more: all requests fail with the error."""
        await self._link.give_up(error)

    def submit(
        self,
        message: Request | Frame,
        payload: PayloadWriter | None,
        read: Read[T],
        timeout: float | None = DEFAULT,
        follows: Sequence[InFlightRequest[Any]] = (),
    ) -> InFlightRequest[T]:
        """Sends a request at once. May be called from any thread.

        A frame that holds the request saves a copy. `read` makes the result from the reply, in the thread that
        waits for it. The request follows earlier ones of this session whose results, which stay on the owner,
        it needs.
        """
        frame = message if isinstance(message, Frame) else Frame(request=message)
        settings = self.settings
        seconds = settings.timeout if timeout == DEFAULT else settings.seconds(timeout)
        in_flight = InFlightRequest(self, frame, payload, seconds, read, follows)
        if self.is_watched():
            in_flight.watch = begin_operation(settings, self.owner, frame)
        return self.send(in_flight)

    def send(self, in_flight: InFlightRequest[T]) -> InFlightRequest[T]:
        """Sends a request: at the end of this turn if it is collected, at once from other threads."""
        scope = current_scope.get()
        if scope is not None:
            in_flight.timeout = scope.within(in_flight.timeout)
            in_flight.frame.request.depth = scope.depth + 1
        requests = self.requests
        if threading.get_ident() != self._thread:
            self._on_loop(requests.begin, in_flight)
        elif in_flight.collects:
            requests.collect(in_flight)
        else:
            requests.begin(in_flight)
        if scope is not None:
            scope.add(in_flight)
        return in_flight

    @property
    def is_here(self) -> bool:
        """Whether this is the thread of its event loop."""
        return threading.get_ident() == self._thread

    def cancel(self, in_flight: InFlightRequest[Any]) -> None:
        """Gives up a request, and cancels it on the owner. May be called from any thread."""
        self._on_loop(self.requests.give_up, in_flight)

    def release(self, object_id: str, losses: int | None = None) -> None:
        """Releases a reference soon; none from before a loss. For any thread, and for the garbage collector."""
        if forks.is_foreign(self.loop):
            return  # the parent process has the handle, too
        self._released.append((object_id, self.losses if losses is None else losses))
        if not self._is_releasing:
            self._is_releasing = True
            # The loop may be closed; then the session has ended, and all its references were given back.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._send_releases)

    def borrowed(self, ref: Ref) -> Any:
        """The handle for another owner's object in an answer; `ForeignHandleError` if no other owners are known."""
        return self._borrowing.held(ref)

    def when_lost(self, do: Callable[[], None]) -> None:
        """Calls a function on the loop each time the owner has ended the session, and when the session gives up."""
        self._when_lost = do

    def forked(self) -> None:
        """Called in a forked child: it has no thread with the loop, so requests are refused."""
        self._thread = 0

    @property
    def prepares(self) -> bool:
        """Whether the owner has a log, and prepares steps over several owners; known once the session is open."""
        return self._welcome is not None and self._welcome.prepares

    @property
    def device(self) -> str:
        """The device of the owner's modules, as it says itself; known once the session is open."""
        return (self._welcome.device if self._welcome is not None else "") or "cpu"

    @property
    def max_message_bytes(self) -> float:
        """Most bytes of tensors that one message to the owner, or from it, may have."""
        return self.requests.window.max_message_bytes

    @property
    def state(self) -> str:
        """Its state for messages: connected, disconnected or closed."""
        if self.requests.closed is not None or forks.is_foreign(self.loop):
            return "closed"
        return "connected" if self.requests.outbox is not None else "disconnected"

    def __repr__(self) -> str:
        return f"<Session with {self.owner or '?'} at {self.address}, {self.state}>"

    # Passes that wait for owners which drain or are away

    def held_up(self) -> set[ContextId]:
        """The passes that wait for its owner, which has turned their requests away, or cannot be reached."""
        requests = self.requests
        held_up = requests.window.requests() if self._is_unreached else requests.refused()
        return passes_of(each.frame.request for each in held_up)

    def tell_held_up(self, contexts: set[ContextId]) -> None:
        """Tells the owner, which drains, the passes that wait for others."""
        if self.requests.outbox is not None and contexts != self._told_held_up:
            self._told_held_up = contexts
            self.requests.outbox.put(Frame(draining=Draining(held_up=[each.to_message() for each in contexts])))

    def try_now(self) -> None:
        """Tries to reach the owner at once, if it is away."""
        if self.requests.outbox is None:
            self._is_unreached = False
            self._link.try_now()

    def _forget_draining(self) -> None:
        """A stream has begun or ended: what was told on the one before holds no more."""
        self.is_draining = self._is_unreached = False
        self.requests.turned_away.clear()
        self._told_held_up = set()
        self.settings.held_up.changed()

    # Events of the link

    def hello(self) -> Hello:
        known = self._welcome.incarnation if self._welcome is not None else GIVEN_UP if self.begins_anew else ""
        return Hello(
            protocol=PROTOCOL,
            trainer=self.trainer,
            incarnation=known,
            owner=self.owner or self._expected,
            process_id=os.getpid(),
            host_name=socket.gethostname()[:LONGEST_NAME],
            program=program_name(),
            member=self.settings.member,
            last_pass=self._last_pass,
            position=self.requests.position,
            namespace=self.settings.namespace,
            last_number=self.requests.window.last_number,
            unanswered=(*self.requests.window.unanswered, *self.requests.given_up),
        )

    def connected(self, welcome: Welcome, outbox: Outbox) -> None:
        self._forget_draining()
        if self._welcome is not None and not welcome.resumed:
            self.losses, self.lost_pass = self.losses + 1, self.settings.last_pass()
            self.restarts += self._welcome.incarnation != welcome.incarnation
            self.requests.lost(lost(self._welcome, welcome, self._was_at, self.address, self.settings.member))
            self.loop.call_soon(self._when_lost)
        self._welcome, self._was_at = welcome, self.address
        self.owner = welcome.owner
        self.requests.connected(welcome, outbox)
        self._settled.set()
        if self._released:
            self._send_releases()

    def disconnected(self) -> None:
        self._last_pass = self.settings.last_pass()
        if self.requests.closed is None:  # or it was given up
            self._settled.clear()
        self.requests.outbox = None
        self._forget_draining()

    def unreached(self) -> None:
        self._is_unreached = True
        self.settings.held_up.changed()

    def received(self, assembler: Assembler, packet: Packet) -> bool:
        message = assembler.feed(packet)
        if message is None:
            return False
        frame, payload, error = message
        number = frame.number
        if frame.HasField("reply"):
            reply = frame.reply
            if error is not None:
                reply.error.CopyFrom(to_message(error))
            if reply.borrowed and number in self.requests.window.unanswered:
                self._borrowing.begin(number, reply, payload)
            else:
                self.requests.finish(number, reply, payload)
        elif frame.HasField("waiting"):
            self.requests.are_waiting(frame.waiting.numbers)
        elif frame.HasField("draining"):
            self.requests.turned_away.update(frame.draining.turned_away)
            if self.is_draining:
                self.settings.held_up.changed()
            else:
                self.is_draining = True
                self.settings.held_up.begin()
        else:
            raise InvalidArgumentError("the owner sent a message that is no reply")
        return False

    def gave_up(self, error: PsError) -> None:
        self.requests.end(error)
        self.settings.held_up.remove(self)
        self._settled.set()
        if self._welcome is not None:
            if self.follows and isinstance(error, UnavailableError):
                self.requests.when_wanted = self._begin_again
            self.loop.call_soon(self._when_lost)

    def _on_loop(self, function: Callable[[InFlightRequest[Any]], None], in_flight: InFlightRequest[Any]) -> None:
        if forks.is_foreign(self.loop):
            in_flight.fail(Failure(forks.refusal()))
            return
        if threading.get_ident() == self._thread:
            function(in_flight)
            return
        try:
            self.loop.call_soon_threadsafe(function, in_flight)
        except RuntimeError:
            in_flight.fail(Failure(ClosedError("this client is closed, and so is its event loop")))

    def _send_releases(self) -> None:
        # While the session is given up they stay, for the case that it opens again.
        self._is_releasing = self.requests.when_wanted is not None
        released = [] if self._is_releasing else [self._released.popleft() for _ in range(len(self._released))]
        object_ids = [each for each, losses in released if losses == self.losses]
        if not object_ids:
            return
        frame = Frame(request=Request(release=ReleaseRequest(object_ids=object_ids)))
        # Not with `submit`, which would apply the scope of the request that the code here may run for.
        self.requests.begin(InFlightRequest(self, frame, None, None, noop))
