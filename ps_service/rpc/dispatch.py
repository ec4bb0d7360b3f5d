"""Dispatch: runs a handler, with its deadline, and turns whatever happens into an answer."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from types import TracebackType
from typing import Any, Final

from ps_service.engine.engine import Engine
from ps_service.rpc.exchange import Exchange
from ps_service.rpc.handlers import OPERATIONS, Operation
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
from ps_wire.limits import MAX_FRAME_BYTES
from ps_wire.marks import name_of
from ps_wire.payload import Buffer
from ps_wire.v1.frames_pb2 import Reply

_log = logging.getLogger("ps_service.dispatch")

_LONGEST_TEXT: Final = 64 * 1024
"""Characters of an exception's message or traceback that are told to the caller: they share one frame."""


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
    deadline = asyncio.timeout(timeout_seconds or None)
    engine.counters.running += 1
    try:
        async with deadline:
            reply = await _run(exchange, operation, request)
        _check_size(exchange, reply)
        result = Answer(reply, exchange.written.chunks, exchange.written.nbytes, exchange.granted)
    except asyncio.CancelledError:
        exchange.give_back()
        result = failure(CancelledCallError("the call was cancelled; the owner may have run it all the same"))
    except Exception as error:
        exchange.give_back()
        late = f"{operation} was not finished within {timeout_seconds:g} s"
        result = failure(DeadlineExceededError(late) if deadline.expired() else _explain(error, operation))
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
        return reply
    error = await exchange.engine.compute.run(lambda: _attempt(rules, exchange, request, slot))
    if error is not None:
        raise _Raised(error)
    return reply


def _attempt(rules: Operation, exchange: Exchange, request: Any, slot: Any) -> BaseException | None:
    """Runs a handler, and returns what it raises: a SystemExit would end the event loop, a StopIteration be lost."""
    try:
        rules.handle(exchange, request, slot)
    except BaseException as error:
        return error
    return None


class _Raised(Exception):
    """Carries what a handler raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _check_size(exchange: Exchange, reply: Reply) -> None:
    limit = exchange.engine.limits.max_message_bytes
    if exchange.written.nbytes > limit:
        raise TooLargeError(
            f"the reply has {exchange.written.nbytes:,} bytes of tensors; the limit is {limit:,}. "
            "Ask for less at a time, or raise max_message_bytes on the owner"
        )
    size = reply.ByteSize()
    if size > MAX_FRAME_BYTES:
        # It would break the stream, and again whenever it is sent again.
        raise TooLargeError(
            f"the reply has {size:,} bytes beside its tensors; {MAX_FRAME_BYTES:,} are allowed. "
            "Return large data as tensors"
        )


def _explain(error: BaseException, operation: str) -> PsError:
    if isinstance(error, _Raised):
        error = error.error
    if isinstance(error, PsError):
        return error
    if OPERATIONS[operation].hosted:
        hosted = _from_hosted_code(error.__traceback__)
        if hosted is None:
            _log.info("%s raised before it came to hosted code", operation, exc_info=error)
        text = "".join(traceback.format_exception(type(error), error, hosted))
        return RemoteError(_shortened(_said(error)), name_of(type(error)), _shortened(text))
    _log.error("%s failed", operation, exc_info=error)
    return InternalError(f"{operation} failed inside the owner; its log says why ({type(error).__name__})")


def _from_hosted_code(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that starts where the owner's own code ends; none if a call did not get that far."""
    rest = trace
    while rest is not None and rest.tb_frame.f_globals.get("__name__", "").startswith(("ps_service.", "concurrent.")):
        rest = rest.tb_next
    return rest


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<it could not say what is wrong>"


def _shortened(text: str) -> str:
    left_out = len(text) - _LONGEST_TEXT
    half = _LONGEST_TEXT // 2
    return text if left_out <= 0 else f"{text[:half]} … {left_out:,} characters left out … {text[-half:]}"
