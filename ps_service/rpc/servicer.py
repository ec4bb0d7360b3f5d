"""The owner's gRPC service."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc

from ps_service.requests.administration import end_unused
from ps_service.rpc.direct import DirectListener
from ps_service.rpc.greeting import Greeting
from ps_service.rpc.grpc_stream import GrpcStream, address_of, certificate_of, reading, writing
from ps_service.rpc.intake import Intake
from ps_service.rpc.rate_limiting import RateLimiting
from ps_service.rpc.session_handler import SessionHandler
from ps_service.rpc.session_handlers import SessionHandlers
from ps_service.rpc.shared_memory import SharedMemoryListener
from ps_service.rpc.unary import UnaryMethods
from ps_service.sessions import arrivals
from ps_wire import errors
from ps_wire.connections import frames
from ps_wire.connections.connection import Connection, ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.connections.outbox import Outbox
from ps_wire.errors import InvalidArgumentError, PsError
from ps_wire.limits import SMALL_BYTES
from ps_wire.refs import ContextId
from ps_wire.v1.frames_pb2 import Frame, Refusal

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.rpc.certificates import OwnerCertificates
    from ps_service.rpc.listener import Listener
    from ps_wire.connections.assembler import Message
    from ps_wire.direct import DirectConnection

_log = logging.getLogger(__name__)

_GREETING_SECONDS: Final = 10.0
"""Seconds that a new stream may take to send its greeting."""

_END_SECONDS: Final = 1.0
"""Seconds for which a direct connection outlives the gRPC stream beside it."""

_MOST_UNSENT: Final = 2
"""Messages to a trainer that may wait to be sent, for each request that it may have in flight. Beyond that, nothing is
read from it until they are sent."""


class Servicer:
    """Serves sessions on any connection, and the unary methods over gRPC."""

    def __init__(self, engine: Engine, certificates: OwnerCertificates | None = None) -> None:
        self.session_handlers = SessionHandlers(engine, SessionHandler)
        traffic = engine.counters.traffic
        self.shared_memory = SharedMemoryListener(
            engine.limits, self.serve, traffic["shared_memory"], engine.shared_memory
        )
        self.direct = DirectListener(self.serve, traffic["direct"], engine.direct, certificates)
        self.direct.when_refused = partial(arrivals.refused, engine.events, "a direct connection")
        engine.access.when_refused = partial(arrivals.denied, engine.events)
        engine.access.when_read = partial(engine.events.note, "tokens")
        self._engine = engine
        self._greeting = Greeting(engine, self.session_handlers, self.shared_memory, self.direct)
        self._unary = UnaryMethods(engine)
        engine.requests.add(self._unary)
        engine.requests.add(self.session_handlers)

    async def serve(
        self,
        connection: Connection,
        peer: str = "",
        listener: Listener[Any, Any] | None = None,
        certificate: str = "",
    ) -> DirectConnection | None:
        """Serves a session on one connection, until the connection ends. Returns the direct connection that has
        replaced it, if one has. The other end has shown a certificate with this name on gRPC."""
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                session_handler, turn, may_move = await self._greeting.answer(connection, listener, certificate)
        except PsError as error:
            arrivals.refused(self._engine.events, "a stream", peer, str(error), certificate)
            with suppress(ConnectionBroken):
                await connection.send(Packet(Frame(refusal=Refusal(error=errors.to_message(error)))))
            return None
        except (ConnectionBroken, TimeoutError):
            return None
        outbox, stream = Outbox(), session_handler.stream
        # The session may have ended by now, too: on the stream before.
        if session_handler.session.ended or not stream.take_over(outbox, turn):
            # The trainer may have opened the direct connection of this welcome before the task went on.
            await connection.close()
            return stream.beside(turn)
        session = session_handler.session
        self._engine.sessions.streams(session, 1)
        if listener is not None:
            session.transport = listener.transport
        else:
            session.transport = "grpc" if peer else "in_process"
        session.peer = peer
        session.held_up = frozenset()
        session_handler.tell_draining()
        arrivals.came(self._engine.events, session, may_move)
        writer = asyncio.create_task(_drain(outbox, connection))
        why = ""
        try:
            await self._listen(connection, session_handler, outbox)
        except (ConnectionBroken, InvalidArgumentError) as error:
            why = str(error)
        except asyncio.CancelledError:
            if stream.outbox is outbox:
                raise
            # A newer stream has replaced this one, or the session was ended. This stream is closed, so that the trainer
            # does not wait for it.
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return stream.beside(turn)
        finally:
            writer.cancel()
            self._engine.sessions.streams(session, -1)
            session.touch()
            stream.leave(outbox)
            if not self._engine.draining:  # which breaks all of them
                arrivals.away(self._engine.events, session, why, self._engine.limits.lease_seconds)
            await connection.close()
        return None

    async def _listen(self, connection: Connection, session_handler: SessionHandler, outbox: Outbox) -> None:
        """Handles what arrives on a stream, until it ends or a newer one replaces it."""
        intake = Intake(self._engine, session_handler.session)
        session, stream, waiting = session_handler.session, session_handler.stream, outbox.waiting
        most = _MOST_UNSENT * self._engine.limits.max_in_flight
        rate_limiting = RateLimiting(self._engine.quotas, session) if self._engine.quotas.is_on else None

        def handle(packet: Packet, at_once: bool = False) -> bool | asyncio.Future[bool]:
            # The trainer may not read the answers. Only large answers count towards its budget.
            if len(waiting) > most and not at_once:
                return asyncio.create_task(handle_later(packet))
            large = packet.frame.payload_bytes > SMALL_BYTES or intake.begun
            taken = intake.take(packet) if large else intake.feed(packet)
            if isinstance(taken, asyncio.Future):
                return asyncio.create_task(handle_after(taken))
            if stream.outbox is not outbox:
                # A newer stream of the same trainer has replaced this one; the trainer sends its requests again there.
                return True
            if taken is None:
                return False
            if rate_limiting is not None:
                taken, seconds = rate_limiting.admit(taken)
                if seconds:
                    return asyncio.create_task(handle_paced(taken, seconds))
            if session.is_away or not (session.is_known and taken.frame.HasField("request")):
                return self._receive(session_handler, taken)
            session_handler.take(taken)
            return False

        async def handle_later(packet: Packet) -> bool:
            # Returns also if the connection breaks, whose end is then read.
            await outbox.flushed()
            last = stream.outbox is not outbox or handle(packet, at_once=True)
            return await last if isinstance(last, asyncio.Future) else last

        async def handle_after(taken: asyncio.Future[Message | None]) -> bool:
            message = await taken
            if rate_limiting is not None and message is not None:
                message, seconds = rate_limiting.admit(message)
                await asyncio.sleep(seconds)
            return stream.outbox is not outbox or (message is not None and self._receive(session_handler, message))

        async def handle_paced(message: Message, seconds: float) -> bool:
            await asyncio.sleep(seconds)
            return stream.outbox is not outbox or self._receive(session_handler, message)

        try:
            await connection.deliver(handle, intake.place)
        finally:
            intake.close()

    def _receive(self, session_handler: SessionHandler, message: Message) -> bool:
        """Handles a message; returns whether it was the last one."""
        frame = message.frame
        body = frame.WhichOneof("body")
        session = session_handler.session
        # One that comes back only to say goodbye has left.
        if not session.is_known or (session.is_away and body != "goodbye"):
            arrivals.came(self._engine.events, session)
        if body == "request":
            session_handler.take(message)
        elif body == "confirm":
            session_handler.confirm(frame.confirm.numbers)
        elif body == "cancel":
            session_handler.cancel(frame.number)
        elif body == "draining":
            session_handler.session.held_up = frozenset(map(ContextId.from_message, frame.draining.held_up))
        elif body == "goodbye":
            session_handler.session.said_goodbye = True
            self.session_handlers.end(session_handler)
            return True
        else:
            raise InvalidArgumentError(f"an owner does not expect {body or 'an empty frame'}")
        return False

    @property
    def busy(self) -> bool:
        """Whether a request is running, besides those that wait for other members."""
        return self.session_handlers.busy or self._unary.busy

    async def settled(self) -> None:
        """Waits until no request is running, and all answers are sent."""
        await self.session_handlers.settled()
        await self._unary.settled()

    def cut_off(self) -> None:
        """Answers running requests as cut off."""
        self.session_handlers.cut_off()
        self._unary.cut_off()

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers for a `grpc.aio.server`."""
        traffic = self._engine.counters.traffic["grpc"]
        stream = grpc.stream_stream_rpc_method_handler(
            self._session,
            request_deserializer=reading(frames.parse, traffic),
            response_serializer=writing(frames.serialize, traffic),
        )
        return grpc.method_handlers_generic_handler("ps_wire.v1.Owner", {"Session": stream, **self._unary.handlers()})

    def close(self) -> None:
        """Cancels the running requests."""
        self.session_handlers.close()
        self._unary.close()

    def sweep(self) -> None:
        """Ends the sessions whose lease has run out, and the contexts that have been unused for too long, and frees
        what moves have brought that do not go on."""
        if not self._engine.fence.is_sure():
            # Their trainers cannot come back now.
            for session in self._engine.sessions.all():
                session.touch()
            return
        try:
            self.session_handlers.sweep()
        finally:
            end_unused(self._engine)
            self._engine.moves.sweep()

    async def _session(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        direct = await self.serve(GrpcStream(context), address_of(context), certificate=certificate_of(context))
        if direct is not None:
            try:
                # The stream stays beside it. When the trainer is gone or has stopped, gRPC cancels this.
                await direct.closed()
            finally:
                # What has arrived on it is read before.
                asyncio.get_running_loop().call_later(_END_SECONDS, direct.cut, "the gRPC stream beside it has ended")


async def _drain(outbox: Outbox, connection: Connection) -> None:
    # The reader notices a broken stream, too, and ends it.
    with suppress(ConnectionBroken):
        try:
            await outbox.drain(connection)
        except ConnectionBroken:
            raise
        except Exception:
            # Without a writer no later answer would be sent, so the trainer has to open another stream.
            _log.exception("a stream could not be written to")
            await connection.close()
