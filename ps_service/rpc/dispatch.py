"""Dispatch: runs a handler, with its deadline, and turns whatever happens into an answer."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from types import TracebackType
from typing import Any

from ps_service.engine.engine import Engine
from ps_service.rpc.exchange import Exchange
from ps_service.rpc.handlers import OPERATIONS
from ps_service.state.journal import Answer
from ps_wire import errors
from ps_wire.errors import (
    CancelledCallError,
    DeadlineExceededError,
    InternalError,
    PsError,
    RemoteError,
    TooLargeError,
    UnavailableError,
)
from ps_wire.marks import name_of
from ps_wire.payload import Buffer
from ps_wire.v1.frames_pb2 import Reply

_log = logging.getLogger("ps_service.dispatch")


async def answer(
    engine: Engine,
    trainer: bytes,
    operation: str,
    request: Any,
    payload: Buffer | None = None,
    timeout_seconds: float = 0.0,
    inline: bool = False,
) -> Answer:
    """Runs one operation and returns its answer, which may be an error. Never raises.

    Args:
        engine: The owner.
        trainer: Who asks.
        operation: Name of the operation.
        request: Its message.
        payload: The tensor bytes beside the message.
        timeout_seconds: How long the caller will wait; 0 for as long as it takes.
        inline: Whether tensor bytes go into the reply's message.
    """
    exchange = Exchange(engine, trainer, payload, inline)
    started = time.monotonic()
    engine.counters.running += 1
    try:
        async with asyncio.timeout(timeout_seconds or None):
            reply = await _run(exchange, operation, request)
        _check_size(exchange)
        result = Answer(reply, exchange.written.chunks, exchange.written.nbytes, exchange.granted)
    except asyncio.CancelledError:
        exchange.give_back()
        result = failure(CancelledCallError("the call was cancelled; the owner may have run it all the same"))
    except Exception as error:
        exchange.give_back()
        result = failure(_explain(error, operation, timeout_seconds))
    finally:
        engine.counters.running -= 1
    engine.counters.count(operation, time.monotonic() - started, failed=result.reply.HasField("error"))
    return result


def failure(error: PsError) -> Answer:
    """The answer that carries an error."""
    return Answer(Reply(error=errors.to_message(error)), [], 0, [])


async def _run(exchange: Exchange, operation: str, request: Any) -> Reply:
    rules = OPERATIONS[operation]
    if exchange.engine.draining and rules.mutates:
        raise UnavailableError(f"owner {exchange.engine.name!r} is shutting down and takes no new work")
    reply = Reply()
    slot = getattr(reply, operation)
    slot.SetInParent()
    if rules.quick:
        rules.handle(exchange, request, slot)
    else:
        await exchange.engine.compute.run(lambda: rules.handle(exchange, request, slot))
    return reply


def _check_size(exchange: Exchange) -> None:
    limit = exchange.engine.limits.max_message_bytes
    if exchange.written.nbytes > limit:
        raise TooLargeError(
            f"the reply has {exchange.written.nbytes:,} bytes of tensors; the limit is {limit:,}. "
            "Ask for less at a time, or raise max_message_bytes on the owner"
        )


def _explain(error: Exception, operation: str, timeout_seconds: float) -> PsError:
    if isinstance(error, TimeoutError) and not isinstance(error, PsError) and timeout_seconds:
        return DeadlineExceededError(f"{operation} was not finished within {timeout_seconds:g} s")
    if isinstance(error, PsError):
        return error
    if OPERATIONS[operation].hosted:
        hosted = _from_hosted_code(error.__traceback__)
        if hosted is None:
            _log.info("%s raised before it came to hosted code", operation, exc_info=error)
        text = "".join(traceback.format_exception(type(error), error, hosted))
        return RemoteError(str(error), name_of(type(error)), text)
    _log.error("%s failed", operation, exc_info=error)
    return InternalError(f"{operation} failed inside the owner; its log says why ({type(error).__name__})")


def _from_hosted_code(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that starts where the owner's own code ends; none if a call did not get that far."""
    rest = trace
    while rest is not None and rest.tb_frame.f_globals.get("__name__", "").startswith(("ps_service.", "concurrent.")):
        rest = rest.tb_next
    return rest
