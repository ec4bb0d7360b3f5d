"""Tells how long a request would take on the event loop, where it needs no hand-over to a thread.

`run_handler.run_inline` asks this before a request is queued. Torch's own layers and optimizers never wait, and their
time is measured. Other code is marked `@remote(inline=True)`, or it is a method of a module that has changed nothing of
the module and waited for nobody in its first calls, gets no handles, and keeps none. A request that would have to wait
raises `WouldBlock` before code of hosted classes begins, and begins again in a thread.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ps_service.passes import kept_values
from ps_service.passes.calls import SMALL_INLINE_BYTES
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.refs import CallKey, ContextId

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext
    from ps_wire.v1 import operations_pb2 as pb

_NEVER: Final = math.inf

_FEW_VALUES_BYTES: Final = 16 * 1024


def short(ctx: RequestContext, request: Any) -> float:
    """The expectation of operations that are always short."""
    return 0.0


def add_to_curves(ctx: RequestContext, request: pb.AddToCurvesRequest) -> float:
    """The expectation of values for curves, which take a microsecond each: short if they are few."""
    return 0.0 if request.ByteSize() <= _FEW_VALUES_BYTES else _NEVER


def call(ctx: RequestContext, request: pb.CallRequest) -> float:
    """How long a call takes, as calls of the same method with arguments of about the same size.

    Raises if there is no such object or method, or it cannot be called.
    """
    if request.function:
        return _NEVER
    hosted = ctx.find(request.target)
    if hosted.is_tensor:
        return _NEVER
    method = ctx.method = hosted.method(request.method or "forward")
    if not method.may_run_inline or (not method.is_inline and hosted.internals.has_references):
        return _NEVER
    ctx.may_restart = not method.is_inline
    if not hosted.is_module and ctx.engine.durability.log is not None:
        return _NEVER  # it may have to wait until what others change is in the log
    results, payload = request.results, ctx.payload
    if not hosted.is_module and (payload is None or len(payload) <= SMALL_INLINE_BYTES) and not results:
        return 0.0
    # The mark is not enough, because the time depends on the size of the arguments.
    size = ctx.embedded_size(request) if payload is None else len(payload)
    if results:
        size += kept_values.nbytes(ctx.engine, results)
    return method.latency.expected(size)


def backward(ctx: RequestContext, request: pb.BackwardRequest) -> float:
    """How long the backwards of all calls take, with the steps behind them. Raises if something is not here."""
    if request.together or (len(request.steps) > 1 and ctx.engine.durability.log is not None):
        return _NEVER  # with a log, none may stop between two steps
    context = ctx.engine.contexts.find(ContextId.from_message(request.context))
    seconds = context.record(CallKey(ctx.trainer, request.call)).expected_seconds
    for each in request.more:
        seconds += context.record(CallKey(ctx.trainer, each.call)).expected_seconds
    for handle in request.steps:
        value = ctx.find(handle).value
        if not isinstance(value, HostedOptimizer) or not value.is_torchs or value.rounds is not None:
            return _NEVER
        # How large the gradients are is not known yet; the handler looks again before the step.
        seconds += value.latency.seconds
    return seconds


def step(ctx: RequestContext, request: pb.StepRequest) -> float:
    """How long a step takes. Raises if the handle refers to no object of this owner."""
    value = ctx.find(request.optimizer).value
    if request.more:
        return _NEVER
    if not isinstance(value, HostedOptimizer) or not value.is_torchs or value.rounds is not None:
        # The reply to an offer of gradients is deferred, which a request on the event loop cannot be.
        return _NEVER
    context = ctx.engine.contexts.get(ContextId.from_message(request.context))
    return 0.0 if context is None else value.latency.expected(context.gradient_bytes)
