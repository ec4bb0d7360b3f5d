"""Unary: the owner's operations as plain gRPC methods, for languages and tools that do not speak the stream."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from ps_service.execution.fair_queue import WorkItem
from ps_service.requests.error_answers import cut_off, failure
from ps_service.requests.operations import OPERATIONS
from ps_service.requests.waiter import answer
from ps_service.rpc.grpc_stream import address_of
from ps_service.rpc.serializers import reading, writing
from ps_service.sessions.administration import BY_OPERATOR
from ps_service.sessions.request_sources import Running
from ps_wire.errors import InvalidArgumentError, OverloadedError, PsError, SessionLostError
from ps_wire.limits import SMALL_BYTES
from ps_wire.refs import new_trainer_id
from ps_wire.v1 import owner_pb2
from ps_wire.v1.errors_pb2 import Error, ErrorCode
from ps_wire.v1.frames_pb2 import Reply, Request

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.sessions.reply_cache import Answer
    from ps_service.sessions.sessions import SessionState

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


_ANYBODY: Final = b""
"""All who do not say who they are take turns as one trainer."""


@dataclass(slots=True)
class _Numbered:
    """A numbered request that runs.

    Attributes:
        task: Brings its answer.
        item: Its work.
        waiting: How many wait for the answer.
    """

    task: asyncio.Task[Answer]
    item: WorkItem
    waiting: int = 0


@dataclass(slots=True, eq=False)
class _Open:
    """A request that runs.

    Attributes:
        trainer: Who asked.
        request: Its message.
        task: Waits for its answer.
        lost: Whether it was cancelled because the trainer's session was ended.
    """

    trainer: bytes
    request: Any
    task: asyncio.Task[Any]
    lost: bool = False


class UnaryMethods:
    """Answers one request at a time, and numbered ones only once however often they come.

    Args:
        engine: The owner.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbered: dict[tuple[bytes, int], _Numbered] = {}
        self._open = 0
        self._requests: set[_Open] = set()
        self._changing = 0
        # Bytes of large answers that are being sent, by trainer.
        self._unsent: Counter[bytes] = Counter()
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
            self._engine.reply_cache.record(trainer, number, cut_off(self._engine, number))

    def running(self) -> Iterator[Running]:
        """The requests that have no answer yet."""
        return (Running(each.trainer, each.request) for each in self._requests)

    def dismiss(self, session: SessionState) -> None:
        """Cancels what runs of a trainer whose session is ended, but for what asks for that."""
        for each in self._requests:
            if each.trainer == session.trainer and each.task is not asyncio.current_task():
                each.lost = True
                each.task.cancel()

    def close(self) -> None:
        """Cancels whatever is still running."""
        for running in self._numbered.values():
            running.task.cancel()

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
        seconds = context.time_remaining() or 0.0
        peer = address_of(context)
        of = trainer if TRAINER_KEY in metadata else _ANYBODY
        try:
            with self._counted(of, operation, request):
                result = await self._answer_of(
                    trainer, TRAINER_KEY in metadata, number, operation, request, seconds, peer
                )
        except OverloadedError as error:
            self._engine.counters.refuse(error.code)
            result = failure(error)
        self._count_answer(of, result, context)
        told = (INCARNATION_KEY, self._engine.incarnations.current)
        if not result.reply.HasField("error"):
            context.set_trailing_metadata((told,))
            return getattr(result.reply, operation)
        message = _fit_for_metadata(result.reply.error)
        context.set_trailing_metadata((told, (ERROR_KEY, message.SerializeToString())))
        await context.abort(STATUS[message.code], message.message)

    @contextmanager
    def _counted(self, of: bytes, operation: str, request: Any) -> Iterator[None]:
        """While the block runs, a request counts for its trainer, as one that came on a stream does.

        Raises:
            OverloadedError: The trainer, or all together, hold too much.
        """
        budget, limits = self._engine.budget, self._engine.limits
        if OPERATIONS[operation].large and self._unsent[of] >= limits.max_session_bytes:
            budget.refusals += 1
            raise OverloadedError(
                f"answers of {self._unsent[of]:,} bytes are on their way to this trainer: take them, or raise "
                "max_session_bytes on the owner"
            )
        nbytes = request.ByteSize()
        if nbytes <= SMALL_BYTES:
            yield
            return
        # Who has no session is not remembered.
        holding = budget.of(of if self._engine.sessions.get(of) is not None else _ANYBODY)
        if not budget.admits(holding, nbytes, nested=False):
            budget.refusals += 1
            raise OverloadedError(
                f"a request of {nbytes:,} bytes found no space: requests of this session hold {holding.requests:,} "
                f"bytes, and those of all sessions {budget.requests:,}. Have fewer large requests in flight, or raise "
                "max_session_bytes or max_owner_bytes on the owner"
            )
        budget.take(holding, nbytes)
        try:
            yield
        finally:
            budget.release(holding, nbytes)

    def _count_answer(self, of: bytes, result: Answer, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Lets a large answer count until it has been sent, or its caller is gone."""
        nbytes = result.reply.ByteSize()
        if nbytes <= SMALL_BYTES:
            return
        self._unsent[of] += nbytes
        self._engine.budget.unsent += nbytes

        def sent(_: Any) -> None:
            self._engine.budget.unsent -= nbytes
            self._unsent[of] -= nbytes
            if not self._unsent[of]:
                del self._unsent[of]

        context.add_done_callback(sent)

    def _check(self, metadata: dict[str, Any]) -> None:
        """Refuses who has seen a state of the owner that is gone, if they say which they have seen."""
        seen = metadata.get(INCARNATION_KEY)
        if seen is not None and seen not in self._engine.incarnations:
            raise SessionLostError(
                f"owner {self._engine.name!r} has restarted from an earlier state than {INCARNATION_KEY} {seen} had; "
                "begin again with its state as it is, and without that metadata"
            )

    async def _answer_of(
        self, trainer: bytes, named: bool, number: int, operation: str, request: Any, timeout: float, peer: str
    ) -> Answer:
        rules = OPERATIONS[operation]
        # What is turned away has not been asked: it has no session, and whoever comes back with it finds it undone.
        if not rules.mutates or not self._engine.gate.admits(trainer, rules, request):
            item = WorkItem(trainer if named else _ANYBODY)
            return await self._run(trainer, operation, request, timeout, item)
        session = self._engine.sessions.open(trainer)
        if not session.streams:
            session.transport, session.peer = "unary", peer
        # Its lease does not run while it waits.
        session.streams += 1
        self._changing += 1
        try:
            if number:
                result = await self._answer_once(session, number, operation, request, timeout)
            else:
                result = await self._run(trainer, operation, request, timeout)
            return cut_off(self._engine) if self._is_cut_off else result
        finally:
            self._changing -= 1
            session.streams -= 1
            session.touch()

    async def _answer_once(
        self, session: SessionState, number: int, operation: str, request: Any, timeout: float
    ) -> Answer:
        """The answer of a request that is run once, however often it comes."""
        key = (session.trainer, number)
        running = self._numbered.get(key)
        if running is None:
            # It runs also when nobody waits for it any more: whoever asks again gets its answer.
            item = WorkItem(session.trainer, lasting=True)
            task = asyncio.create_task(self._run_once(session, number, operation, request, timeout, item))
            running = self._numbered[key] = _Numbered(task, item)
            task.add_done_callback(lambda _: self._numbered.pop(key))
        compute = self._engine.compute
        running.waiting += 1
        compute.reclaim(running.item)
        try:
            result = await asyncio.shield(running.task)
        finally:
            running.waiting -= 1
            if not running.waiting and not running.task.done():
                compute.abandon(running.item)
        if result.reply.HasField("error") or result.reply.HasField(operation):
            return result
        return failure(InvalidArgumentError(f"{NUMBER_KEY} {number} was another request's; count on with each new one"))

    async def _run_once(
        self, session: SessionState, number: int, operation: str, request: Any, timeout: float, item: WorkItem
    ) -> Answer:
        reply_cache, trainer = self._engine.reply_cache, session.trainer
        known = reply_cache.recall(trainer, number)
        if known is not None:
            return known
        result = await self._run(trainer, operation, request, timeout, item)
        if self._is_cut_off:
            return result
        if session.ended:
            self._engine.registry.revoke(trainer, result.granted)
        else:
            reply_cache.forget(trainer, range(max(1, number - 16), number))
            reply_cache.record(trainer, number, result)
            await reply_cache.flushed()
        return result

    async def _run(
        self, trainer: bytes, operation: str, request: Any, timeout: float, item: WorkItem | None = None
    ) -> Answer:
        """The answer of an operation that administration sees, and may cancel."""
        task = asyncio.current_task()
        assert task is not None
        running = _Open(trainer, request, task)
        self._requests.add(running)
        try:
            result = await answer(
                self._engine, trainer, OPERATIONS[operation], request, None, timeout, embed=True, item=item
            )
        finally:
            self._requests.discard(running)
        if not running.lost:
            return result
        # The cancellation has done what it was meant for: the answer has yet to be sent.
        task.uncancel()
        why = f"owner {self._engine.name!r} has ended this session: {BY_OPERATOR}"
        return failure(SessionLostError(f"{why}. Whether the request ran is not known"))

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
