"""The owner's operations as unary gRPC methods, for clients in other languages and for tools."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError

from ps_service.access import identities, namespaces
from ps_service.access.identities import ANYONE, Asker
from ps_service.execution.fair_queue import WorkItem
from ps_service.requests.administration import BY_OPERATOR
from ps_service.requests.error_answers import cut_off, failure
from ps_service.requests.execution import answer
from ps_service.requests.operations import OPERATIONS
from ps_service.rpc.grpc_stream import address_of, certificate_of, reading, writing
from ps_service.rpc.unary_budget import UNNAMED, UnaryBudget
from ps_service.rpc.unary_metadata import (
    ERROR_KEY,
    INCARNATION_KEY,
    NAMESPACE_KEY,
    NUMBER_KEY,
    POSITION_KEY,
    STATUS,
    TRAINER_KEY,
    Caller,
    caller_of,
    fit_for_metadata,
)
from ps_service.sessions import arrivals
from ps_service.sessions.effects import synced
from ps_service.sessions.reply_cache import confirmed_by
from ps_service.sessions.request_sources import Running
from ps_wire.errors import (
    InvalidArgumentError,
    OverloadedError,
    PsError,
    SessionLostError,
    UnavailableError,
    to_message,
)
from ps_wire.numbers import LONGEST_SECONDS
from ps_wire.v1.frames_pb2 import Reply, Request

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.requests.context import RequestContext
    from ps_service.requests.operations import Operation
    from ps_service.sessions.reply_cache import Answer
    from ps_service.sessions.sessions import SessionState

_log = logging.getLogger(__name__)

_Run = Callable[[WorkItem], Coroutine[Any, Any, "Answer"]]
"""Runs a request, as a work item of the compute threads."""

_TOLD: Final = {"checkpoint", "evict"}
"""Operations whose event says who asked, although no session is needed for them."""


@dataclass(slots=True, eq=False)
class _Open:
    """A running request. It may be `lost` because the session of its trainer was ended."""

    trainer: bytes
    request: Any
    task: asyncio.Task[Any]
    apart: bool = False
    lost: bool = False
    ctx: RequestContext | None = None

    def begun(self, ctx: RequestContext) -> None:
        """Notes the context in which it runs."""
        self.ctx = ctx


@dataclass(slots=True)
class _Numbered:
    """A running request with a number, and how many callers wait for its answer."""

    task: asyncio.Task[Answer]
    item: WorkItem
    waiting: int = 0


class UnaryMethods:
    """Answers unary requests; a numbered one runs once, however often it is sent."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._budget = UnaryBudget(engine)
        self._numbered: dict[tuple[bytes, int], _Numbered] = {}
        self._open = 0
        self._requests: set[_Open] = set()
        self._changing = 0
        self._is_cut_off = False
        self._none_open = asyncio.Event()
        self._none_open.set()

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """One handler for each method of the service except the stream."""
        handlers = {}
        traffic = self._engine.counters.traffic["grpc"]
        for name, operation in OPERATIONS.items():
            handlers[name.title().replace("_", "")] = grpc.unary_unary_rpc_method_handler(
                partial(self._answer, operation),
                request_deserializer=reading(_parser(type(getattr(Request(), name))), traffic),
                response_serializer=writing(type(getattr(Reply(), name)).SerializeToString, traffic),
            )
        return handlers

    @property
    def busy(self) -> bool:
        """Whether a request that mutates is running."""
        return self._changing > 0

    async def settled(self) -> None:
        """Waits until all answers are sent."""
        await self._none_open.wait()

    def cut_off(self) -> None:
        """Answers running requests as cut off; their later effects are not kept."""
        self._is_cut_off = True
        for trainer, number in self._numbered:
            self._engine.reply_cache.record(trainer, number, cut_off(self._engine, number))

    def running(self) -> Iterator[Running]:
        """The requests that have no answer yet, but for reports about the owner. May be called in any thread."""
        requests = [each for each in list(self._requests) if not each.apart]
        return (
            Running(each.trainer, each.request, made=None if each.ctx is None else each.ctx.made) for each in requests
        )

    def dismiss(self, session: SessionState) -> None:
        """Cancels the requests of a trainer whose session is ended, except the request that ends it."""
        for each in self._requests:
            if each.trainer == session.trainer and each.task is not asyncio.current_task():
                each.lost = True
                each.task.cancel()

    def close(self) -> None:
        """Cancels the running requests."""
        for running in self._numbered.values():
            running.task.cancel()

    async def _answer(self, operation: Operation, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        """Runs one operation as a plain unary method."""
        metadata = dict(context.invocation_metadata() or ())
        try:
            if isinstance(request, PsError):
                _log.warning("a request %s from %s: %s", operation.name, address_of(context), request)
                raise request
            caller = caller_of(metadata, operation)
            caller = self._admitted(caller, metadata, operation, request)
            self._check(metadata)
            if self._engine.quotas.is_on:
                self._check_quotas(caller, request)
        except PsError as error:
            message = fit_for_metadata(to_message(error))
            context.set_trailing_metadata(((ERROR_KEY, message.SerializeToString()),))
            await context.abort(STATUS[error.code], message.message)
            raise
        self._open += 1
        self._none_open.clear()
        context.add_done_callback(self._done)
        seconds = min(context.time_remaining() or 0.0, LONGEST_SECONDS)
        of = self._budget.key_of(caller.trainer, caller.asker)
        try:
            with self._budget.counted(of, caller.asker, operation, request):
                result = await self._answer_of(caller, operation, request, seconds, context)
        except OverloadedError as error:
            self._engine.counters.refuse(error.code)
            result = failure(error)
        if not self._engine.fence.is_sure():
            result = failure(UnavailableError(self._engine.fence.doubt.format(self._engine.name)))
        log = self._engine.durability.log
        if log is not None and log.acknowledges and result.position:
            failed = await synced(log, result.position)
            result = result if failed is None else failure(failed)
        try:
            self._budget.count_answer(of, result, context)
        except OverloadedError as error:
            result = failure(error)
        told: list[tuple[str, str | bytes]] = [(INCARNATION_KEY, self._engine.incarnations.current)]
        if result.reply.position:
            told.append((POSITION_KEY, str(result.reply.position)))
        if not result.reply.HasField("error"):
            context.set_trailing_metadata(tuple(told))
            return getattr(result.reply, operation.name)
        message = fit_for_metadata(result.reply.error)
        told.append((ERROR_KEY, message.SerializeToString()))
        context.set_trailing_metadata(tuple(told))
        await context.abort(STATUS[message.code], message.message)

    def _admitted(self, caller: Caller, metadata: dict[str, Any], operation: Operation, request: Any) -> Caller:
        """A caller with its identity, if it may do what it asks for. Raises as `Belongings.admit`."""
        identity, namespace = identities.caller.get(), namespaces.checked(metadata.get(NAMESPACE_KEY, ""))
        asker = None if identity is ANYONE else Asker(identity.within(namespace), caller.trainer, namespace)
        self._engine.belongings.admit(asker, namespace, operation, request)
        self._engine.sessions.check(caller.trainer, identity)
        session = self._engine.sessions.get(caller.trainer)
        if session is not None and session.namespace != namespace and (session.streams or not operation.mutates):
            # It would act where the session is, and its rights were looked at in the other one.
            there = session.namespace or namespaces.DEFAULT
            raise InvalidArgumentError(
                f"the session {session.name} is in the namespace {there!r}, and the metadata {NAMESPACE_KEY} says "
                f"{namespace or namespaces.DEFAULT!r}: send the same, or another {TRAINER_KEY}"
            )
        self._engine.requests.check_stays(session, namespace)
        return caller._replace(asker=asker, namespace=namespace)

    def _check_quotas(self, caller: Caller, request: Any) -> None:
        """Refuses a request that is too large, or would have to wait."""
        self._engine.quotas.check_message(caller.account, request.ByteSize())
        self._engine.quotas.admit_call(caller.account)

    def _check(self, metadata: dict[str, Any]) -> None:
        """Refuses a caller that names an incarnation whose state is lost, and any while the owner may be replaced."""
        if not self._engine.gate.why and not self._engine.fence.is_sure():
            raise UnavailableError(self._engine.fence.doubt.format(self._engine.name))
        seen = metadata.get(INCARNATION_KEY)
        if seen is not None and seen not in self._engine.incarnations:
            raise SessionLostError(
                f"owner {self._engine.name!r} has restarted from an earlier state than {INCARNATION_KEY} {seen} had; "
                "begin again with its state as it is, and without that metadata"
            )

    async def _answer_of(
        self,
        caller: Caller,
        operation: Operation,
        request: Any,
        timeout: float,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> Answer:
        trainer = caller.trainer
        by = _by(context) if operation.name in _TOLD else None
        run = partial(self._run, caller, operation, request, timeout, by)
        # A refused request opens no session, so that it can be sent again later.
        if not operation.mutates or not self._engine.gate.admits(trainer, operation, request):
            return await run(WorkItem(trainer if caller.named else UNNAMED, account=caller.account))
        self._engine.sessions.admit(trainer, identities.caller.get(), caller.namespace)
        session = self._engine.sessions.open(trainer, identities.caller.get())
        if not session.streams:
            self._engine.sessions.enter(session, identities.caller.get(), caller.namespace)
            session.transport, session.peer = "unary", address_of(context)
        if not session.is_known:
            session.certificate = certificate_of(context)
        session.last_request = time.perf_counter()
        arrivals.came(self._engine.events, session)
        # Its lease does not run while the request waits.
        self._engine.sessions.streams(session, 1)
        self._changing += 1
        try:
            if caller.number:
                result = await self._run_numbered(session, caller.number, operation, run)
            else:
                result = await run(WorkItem(trainer))
                if session.ended:
                    self._engine.registry.revoke(trainer, result.granted)
            return cut_off(self._engine) if self._is_cut_off else result
        finally:
            self._changing -= 1
            self._engine.sessions.streams(session, -1)
            session.touch()

    async def _run_numbered(self, session: SessionState, number: int, operation: Operation, run: _Run) -> Answer:
        """The answer of a request with a number, which runs if it has not run before. If its caller is cancelled, it
        goes on, and its answer is kept."""
        key = (session.trainer, number)
        running = self._numbered.get(key)
        if running is None:
            # It also runs if its caller has gone: the caller that asks again gets its answer.
            item = WorkItem(session.trainer, lasting=True)
            task = asyncio.create_task(self._run_once(session, number, run, item))
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
        if result.reply.HasField("error") or result.reply.HasField(operation.name):
            return result
        return failure(InvalidArgumentError(f"{NUMBER_KEY} {number} was another request's; count on with each new one"))

    async def _run_once(self, session: SessionState, number: int, run: _Run, item: WorkItem) -> Answer:
        reply_cache, trainer = self._engine.reply_cache, session.trainer
        known = reply_cache.recall(trainer, number)
        if known is not None:
            return known
        result = await run(item)
        if self._is_cut_off:
            return result
        if session.ended:
            self._engine.registry.revoke(trainer, result.granted)
        else:
            reply_cache.forget(trainer, confirmed_by(number))
            reply_cache.record(trainer, number, result)
        return result

    async def _run(
        self,
        caller: Caller,
        operation: Operation,
        request: Any,
        timeout: float,
        by: Mapping[str, str] | None,
        item: WorkItem,
    ) -> Answer:
        """Runs an operation; administration lists it meanwhile, and may cancel it."""
        trainer, number = caller.trainer, caller.number
        task = asyncio.current_task()
        assert task is not None
        running = _Open(trainer, request, task, operation.apart)
        self._requests.add(running)
        try:
            result = await answer(
                self._engine,
                trainer,
                operation,
                request,
                None,
                timeout,
                True,
                item,
                number,
                caller.asker,
                by,
                running.begun,
            )
        finally:
            self._requests.discard(running)
        if not running.lost:
            return result
        # The cancellation has ended the request. The task goes on, to send the answer.
        task.uncancel()
        why = f"owner {self._engine.name!r} has ended this session: {BY_OPERATOR}"
        return failure(SessionLostError(f"{why}. Whether the request ran is not known"))

    def _done(self, _: Any) -> None:
        self._open -= 1
        if not self._open:
            self._none_open.set()


def _by(context: grpc.aio.ServicerContext[Any, Any]) -> dict[str, str]:
    """Who asks, for the audit log."""
    name = identities.caller.get().name
    return {"identity": name, "address": address_of(context), "certificate": certificate_of(context)}


def _parser(message: Any) -> Callable[[bytes], Any]:
    """Parses messages of a class; the result is an error for what is none. If it raised, gRPC would log a traceback."""

    def parse(data: bytes) -> Any:
        try:
            return message.FromString(data)
        except DecodeError as error:
            return InvalidArgumentError(f"this is no {message.DESCRIPTOR.name}: {error}")

    return parse
