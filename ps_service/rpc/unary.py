"""Unary: the owner's operations as plain gRPC methods, for languages and tools that do not speak the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from ps_service.engine.engine import Engine
from ps_service.rpc.dispatch import answer, cut_off, failure
from ps_service.rpc.handlers import OPERATIONS
from ps_service.rpc.serializers import reading, writing
from ps_service.state.journal import Answer
from ps_service.state.sessions import Session
from ps_wire.errors import InvalidArgumentError, PsError, SessionLostError
from ps_wire.refs import new_trainer_id
from ps_wire.v1 import owner_pb2
from ps_wire.v1.errors_pb2 import Error, ErrorCode
from ps_wire.v1.frames_pb2 import Reply, Request

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
INCARNATION_KEY: Final = "ps-incarnation"
ERROR_KEY: Final = "ps-error-bin"

_LONGEST_METADATA: Final = 1024
"""Bytes of an error's message, which travels twice; its traceback may have twice as many. The limit is 8 KiB."""


class UnaryMethods:
    """Answers one request at a time, and numbered ones only once however often they come.

    Args:
        engine: The owner.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbered: dict[tuple[bytes, int], asyncio.Task[Answer]] = {}
        self._open = 0
        self._changing = 0
        self._is_cut_off = False
        self._none_open = asyncio.Event()
        self._none_open.set()

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """One handler per method of the service, but not for its stream."""
        handlers = {}
        traffic = self._engine.counters.traffic["grpc"]
        for method in owner_pb2.DESCRIPTOR.services_by_name["Owner"].methods:
            if method.name != "Session":
                operation = _snake(method.name)
                handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                    self._method(operation),
                    request_deserializer=reading(_message_class(Request, operation).FromString, traffic),
                    response_serializer=writing(_message_class(Reply, operation).SerializeToString, traffic),
                )
        return handlers

    @property
    def busy(self) -> bool:
        """Whether a request is running that changes something."""
        return self._changing > 0

    async def settled(self) -> None:
        """Waits until every answer is on its way."""
        await self._none_open.wait()

    def cut_off(self) -> None:
        """Whatever still runs is answered as that it was cut off: what it does from now on is not kept."""
        self._is_cut_off = True
        for trainer, number in self._numbered:
            self._engine.journal.record(trainer, number, cut_off(self._engine, number))

    def close(self) -> None:
        """Cancels whatever is still running."""
        for running in self._numbered.values():
            running.cancel()

    def _method(self, operation: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def method(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            return await self._answer(operation, request, context)

        return method

    async def _answer(self, operation: str, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """One operation as a plain unary method."""
        metadata = dict(context.invocation_metadata() or ())
        try:
            trainer, number = _caller(metadata, operation)
            self._check(metadata)
        except PsError as error:
            await context.abort(STATUS[error.code], str(error))
            raise
        self._opened(context)
        result = await self._answer_of(trainer, number, operation, request, context.time_remaining() or 0.0)
        told = (INCARNATION_KEY, self._engine.incarnation)
        if not result.reply.HasField("error"):
            context.set_trailing_metadata((told,))
            return getattr(result.reply, operation)
        message = _fit_for_metadata(result.reply.error)
        context.set_trailing_metadata((told, (ERROR_KEY, message.SerializeToString())))
        await context.abort(STATUS[message.code], message.message)

    def _check(self, metadata: dict[str, Any]) -> None:
        """Refuses who has seen a state of the owner that is gone, if they say which they have seen."""
        seen = metadata.get(INCARNATION_KEY)
        if seen is not None and not self._engine.knows(seen):
            raise SessionLostError(
                f"owner {self._engine.name!r} has restarted from an earlier state than {INCARNATION_KEY} {seen} had; "
                "begin again with its state as it is, and without that metadata"
            )

    async def _answer_of(self, trainer: bytes, number: int, operation: str, request: Any, timeout: float) -> Answer:
        rules = OPERATIONS[operation]
        # What is turned away has not been asked: it has no session, and whoever comes back with it finds it undone.
        if not rules.mutates or not self._engine.gate.admits(trainer, operation, request, rules.mutates):
            return await answer(self._engine, trainer, operation, request, None, timeout, inline=True)
        session = self._engine.sessions.open(trainer)
        # Its lease does not run while it waits.
        session.streams += 1
        self._changing += 1
        try:
            if number:
                result = await self._answer_once(session, number, operation, request, timeout)
            else:
                result = await answer(self._engine, trainer, operation, request, None, timeout, inline=True)
            return cut_off(self._engine) if self._is_cut_off else result
        finally:
            self._changing -= 1
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
        if self._is_cut_off:
            return result
        if session.ended:
            self._engine.registry.revoke(trainer, result.granted)
        else:
            journal.forget(trainer, range(max(1, number - 16), number))
            journal.record(trainer, number, result)
            await journal.flushed()
        return result

    def _opened(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._open += 1
        self._none_open.clear()
        context.add_done_callback(self._done)

    def _done(self, _: Any) -> None:
        self._open -= 1
        if not self._open:
            self._none_open.set()


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
