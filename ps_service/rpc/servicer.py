"""Servicer: the owner's gRPC service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final

import grpc

from ps_service.engine.engine import Engine
from ps_service.rpc.conversations import Conversation, Conversations
from ps_service.rpc.dispatch import answer, failure
from ps_service.rpc.grpc_stream import GrpcStream
from ps_service.rpc.handlers import OPERATIONS
from ps_service.state.journal import Answer
from ps_service.state.sessions import Session
from ps_wire import errors, frames
from ps_wire.assembler import Assembler, Message
from ps_wire.connection import Connection, ConnectionBroken
from ps_wire.errors import InvalidArgumentError, PsError, UnavailableError
from ps_wire.frames import Packet
from ps_wire.limits import PROTOCOL
from ps_wire.outbox import Outbox
from ps_wire.refs import new_trainer_id
from ps_wire.v1 import owner_pb2
from ps_wire.v1.errors_pb2 import Error, ErrorCode
from ps_wire.v1.frames_pb2 import Frame, Hello, Refusal, Reply, Request, Welcome

_log = logging.getLogger("ps_service.servicer")

STATUS: Final[dict[int, grpc.StatusCode]] = {
    ErrorCode.ERROR_INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.ERROR_UNKNOWN_NAME: grpc.StatusCode.NOT_FOUND,
    ErrorCode.ERROR_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.ERROR_NAME_CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.ERROR_STALE_HANDLE: grpc.StatusCode.NOT_FOUND,
    ErrorCode.ERROR_FOREIGN_HANDLE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.ERROR_CONTEXT_ENDED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.ERROR_CONTEXT_LOST: grpc.StatusCode.ABORTED,
    ErrorCode.ERROR_REMOTE: grpc.StatusCode.UNKNOWN,
    ErrorCode.ERROR_NON_FINITE_GRADIENT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.ERROR_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.ERROR_DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.ERROR_CANCELLED: grpc.StatusCode.CANCELLED,
    ErrorCode.ERROR_OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.ERROR_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.ERROR_SESSION_LOST: grpc.StatusCode.ABORTED,
    ErrorCode.ERROR_INTERNAL: grpc.StatusCode.INTERNAL,
}
"""The gRPC status of each error, for the unary methods."""

TRAINER_KEY: Final = "ps-trainer"
NUMBER_KEY: Final = "ps-number"
ERROR_KEY: Final = "ps-error-bin"

_LONGEST_METADATA: Final = 1024
"""Bytes of an error's message, which travels twice; its traceback may have twice as many. The limit is 8 KiB."""


class Servicer:
    """Serves sessions on any connection, and the unary methods over gRPC.

    Args:
        engine: The owner.
    """

    def __init__(self, engine: Engine) -> None:
        self.conversations = Conversations(engine)
        self._engine = engine
        self._numbered: dict[tuple[bytes, int], asyncio.Task[Answer]] = {}
        self._unary_open = 0
        self._no_unary = asyncio.Event()
        self._no_unary.set()

    async def serve(self, connection: Connection) -> None:
        """Holds one stream's end of a session, until the stream ends."""
        try:
            conversation = await self._greet(connection)
        except PsError as error:
            with suppress(ConnectionBroken):
                await connection.send(Packet(Frame(refusal=Refusal(error=errors.to_message(error)))))
            return
        except ConnectionBroken:
            return
        outbox = Outbox()
        conversation.take_over(outbox)
        session = conversation.session
        session.streams += 1
        writer = asyncio.create_task(_drain(outbox, connection))
        try:
            await self._listen(connection, conversation, outbox)
        except (ConnectionBroken, InvalidArgumentError) as error:
            _log.info("the stream of trainer %s ended: %s", session.trainer.hex()[:8], error)
        finally:
            writer.cancel()
            session.streams -= 1
            session.touch()
            conversation.leave(outbox)
            await connection.close()

    async def _greet(self, connection: Connection) -> Conversation:
        first = await connection.receive()
        if first is None or not first.frame.HasField("hello"):
            raise InvalidArgumentError("a stream begins with Hello")
        hello = first.frame.hello
        self._check(hello)
        resumed = hello.incarnation == self._engine.incarnation and self.conversations.get(hello.trainer) is not None
        lost = self.conversations.get(hello.trainer)
        if hello.incarnation and not resumed and lost is not None:
            self.conversations.end(lost)
        conversation = self.conversations.open(hello.trainer)
        conversation.interrupt()
        self._engine.journal.keep_only(hello.trainer, hello.unanswered)
        limits = self._engine.limits
        welcome = Welcome(
            owner=self._engine.name,
            incarnation=self._engine.incarnation,
            resumed=resumed,
            lease_seconds=limits.lease_seconds,
            max_message_bytes=limits.max_message_bytes,
            max_in_flight=limits.max_in_flight,
            version=version("torch-parameter-server"),
        )
        await connection.send(Packet(Frame(welcome=welcome)))
        return conversation

    def _check(self, hello: Hello) -> None:
        if hello.protocol != PROTOCOL:
            raise InvalidArgumentError(
                f"this owner speaks version {PROTOCOL} of the protocol, the trainer version {hello.protocol}; "
                "install the same release on both sides"
            )
        if len(hello.trainer) != 16:
            raise InvalidArgumentError("a trainer's id has 16 bytes")
        if self._engine.draining:
            raise UnavailableError(f"owner {self._engine.name!r} is shutting down")

    async def _listen(self, connection: Connection, conversation: Conversation, outbox: Outbox) -> None:
        assembler = Assembler(self._engine.limits.max_message_bytes)
        while True:
            packet = await connection.receive()
            # A newer stream of the same trainer has taken over: whatever still comes here was sent again there.
            if packet is None or conversation.outbox is not outbox:
                return
            message = assembler.feed(packet)
            if message is not None and self._handle(message, conversation):
                return

    def _handle(self, message: Message, conversation: Conversation) -> bool:
        """Handles one message; says whether it was the last."""
        match message.frame.WhichOneof("body"):
            case "request":
                conversation.take(message)
            case "confirm":
                conversation.confirm(message.frame.confirm.numbers)
            case "cancel":
                conversation.cancel(message.frame.number)
            case "goodbye":
                self.conversations.end(conversation)
                return True
            case other:
                raise InvalidArgumentError(f"an owner does not expect {other or 'an empty frame'}")
        return False

    async def unary(self, operation: str, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """One operation as a plain unary method."""
        metadata = dict(context.invocation_metadata() or ())
        try:
            trainer, number = _caller(metadata, operation)
        except InvalidArgumentError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        self._opened(context)
        result = await self._answer_of(trainer, number, operation, request, context.time_remaining() or 0.0)
        if not result.reply.HasField("error"):
            return getattr(result.reply, operation)
        message = _fit_for_metadata(result.reply.error)
        context.set_trailing_metadata(((ERROR_KEY, message.SerializeToString()),))
        await context.abort(STATUS[message.code], message.message)

    async def _answer_of(self, trainer: bytes, number: int, operation: str, request: Any, timeout: float) -> Answer:
        if not OPERATIONS[operation].mutates:
            return await answer(self._engine, trainer, operation, request, None, timeout, inline=True)
        session = self._engine.sessions.open(trainer)
        # Its lease does not run while it waits.
        session.streams += 1
        try:
            if not number:
                return await answer(self._engine, trainer, operation, request, None, timeout, inline=True)
            return await self._answer_once(session, number, operation, request, timeout)
        finally:
            session.streams -= 1
            session.touch()

    async def _answer_once(self, session: Session, number: int, operation: str, request: Any, timeout: float) -> Answer:
        """The answer of a request that is run once, however often it comes."""
        key = (session.trainer, number)
        running = self._numbered.get(key)
        if running is None:
            running = asyncio.create_task(self._run_once(session, number, operation, request, timeout))
            self._numbered[key] = running
            running.add_done_callback(lambda _: self._numbered.pop(key))
        # Who stops waiting does not take the answer away from who asks again.
        result = await asyncio.shield(running)
        if result.reply.HasField("error") or result.reply.HasField(operation):
            return result
        return failure(InvalidArgumentError(f"{NUMBER_KEY} {number} was another request's; count on with each new one"))

    async def _run_once(self, session: Session, number: int, operation: str, request: Any, timeout: float) -> Answer:
        journal, trainer = self._engine.journal, session.trainer
        known = journal.recall(trainer, number)
        if known is not None:
            return known
        result = await answer(self._engine, trainer, operation, request, None, timeout, inline=True)
        if session.ended:
            self._engine.registry.revoke(trainer, result.granted)
        else:
            journal.forget(trainer, range(max(1, number - 16), number))
            await journal.record(trainer, number, result)
        return result

    def _opened(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._unary_open += 1
        self._no_unary.clear()
        context.add_done_callback(self._done)

    def _done(self, _: Any) -> None:
        self._unary_open -= 1
        if not self._unary_open:
            self._no_unary.set()

    async def settled(self) -> None:
        """Waits until no request is running, and every answer is on its way."""
        await self.conversations.settled()
        await self._no_unary.wait()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a `grpc.aio.server` needs to serve this."""
        methods: dict[str, Any] = {
            "Session": grpc.stream_stream_rpc_method_handler(
                self._session, request_deserializer=frames.parse, response_serializer=frames.serialize
            )
        }
        for method in owner_pb2.DESCRIPTOR.services_by_name["Owner"].methods:
            if method.name != "Session":
                operation = _snake(method.name)
                methods[method.name] = grpc.unary_unary_rpc_method_handler(
                    self._unary(operation),
                    request_deserializer=_message_class(Request, operation).FromString,
                    response_serializer=_message_class(Reply, operation).SerializeToString,
                )
        return grpc.method_handlers_generic_handler("ps_wire.v1.Owner", methods)

    def close(self) -> None:
        """Cancels whatever is still running."""
        self.conversations.close()
        for running in self._numbered.values():
            running.cancel()

    async def _session(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await self.serve(GrpcStream(context))

    def _unary(self, operation: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def method(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            return await self.unary(operation, request, context)

        return method


async def _drain(outbox: Outbox, connection: Connection) -> None:
    # The reader notices a broken stream too, and ends it.
    with suppress(ConnectionBroken):
        await outbox.drain(connection)


def _caller(metadata: dict[str, Any], operation: str) -> tuple[bytes, int]:
    text, number = metadata.get(TRAINER_KEY, ""), metadata.get(NUMBER_KEY, "0")
    if not text and not OPERATIONS[operation].mutates:
        return new_trainer_id(), 0
    try:
        trainer = bytes.fromhex(text)
    except ValueError:
        trainer = b""
    if len(trainer) != 16 or not number.isdecimal():
        raise InvalidArgumentError(
            f"send the metadata {TRAINER_KEY} (32 hexadecimal digits of your choice, the same for all your calls) "
            f"and, to make repeated requests safe, {NUMBER_KEY} (1, 2, 3 …)"
        )
    return trainer, int(number)


def _fit_for_metadata(error: Error) -> Error:
    """The error in a few thousand bytes: gRPC refuses replies whose metadata is longer."""
    message = error.message.encode()[:_LONGEST_METADATA].decode(errors="ignore")
    trace = error.traceback.encode()[-2 * _LONGEST_METADATA :].decode(errors="ignore")
    return Error(code=error.code, message=message, remote_type=error.remote_type[:200], traceback=trace)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


def _message_class(envelope: type[Request] | type[Reply], operation: str) -> Any:
    return type(getattr(envelope(), operation))
