"""Decides which requests run on the event loop, because a hand-over to a thread would take longer than the work.

`run_handler.run_inline` applies the rule of an operation before a request is queued. Torch's own layers and optimizers
never wait, and their time is measured. Other code has to be marked `@remote(inline=True)`. Only a step in progress
could still make such a request wait. It then raises `WouldBlock` before it has changed anything, and runs in a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_service.training.optimizers import HostedOptimizer
from ps_wire.decorators import is_deferred, is_inline
from ps_wire.refs import CallKey, ContextId, Ref

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject
    from ps_service.requests.context import RequestContext
    from ps_wire.v1 import operations_pb2 as pb


def always(ctx: RequestContext, request: Any) -> bool:
    """The rule of operations that are always short."""
    return True


def call(ctx: RequestContext, request: pb.CallRequest) -> bool:
    """Whether a call is short.

    Raises:
        ForeignHandleError, StaleHandleError, UnknownNameError: The handle refers to no object of this owner.
    """
    if request.function:
        return False
    hosted, method = ctx.find(request.target), request.method
    if hosted.bound_copies is None:
        function = getattr(type(hosted.value), method, None)
        return is_inline(function) and not is_deferred(function)
    # The mark is not enough, because the time depends on the size of the arguments.
    size = ctx.size(request.args, request.kwargs)
    if not hosted.latency.is_short_for(size) or is_deferred(getattr(type(hosted.value), method or "forward", None)):
        return False
    return hosted.is_layer or _is_promised(hosted, method or "forward")


def backward(ctx: RequestContext, request: pb.BackwardRequest) -> bool:
    """Whether the backwards of all calls are short, and the steps behind them.

    Raises:
        ContextEndedError, ContextLostError: The pass is not open on this owner.
        ForeignHandleError, StaleHandleError, UnknownNameError: The handle of an optimizer refers to no object here.
    """
    context = ctx.engine.contexts.find(ContextId.from_message(request.context))
    if not context.record(CallKey(ctx.trainer, request.call)).is_inline:
        return False
    for each in request.more:
        if not context.record(CallKey(ctx.trainer, each.call)).is_inline:
            return False
    for handle in request.steps:
        value = ctx.engine.registry.find(Ref.from_message(handle)).value
        # How large the gradients are is not known yet; the handler looks again before the step.
        if not isinstance(value, HostedOptimizer) or not value.is_torchs or not value.latency.is_short:
            return False
    return True


def step(ctx: RequestContext, request: pb.StepRequest) -> bool:
    """Whether a step is short.

    Raises:
        ForeignHandleError, StaleHandleError, UnknownNameError: The handle refers to no object of this owner.
    """
    value = ctx.find(request.optimizer).value
    if not isinstance(value, HostedOptimizer) or not value.is_torchs:
        return False
    context = ctx.engine.contexts.get(ContextId.from_message(request.context))
    return context is None or value.latency.is_short_for(context.gradient_bytes)


def _is_promised(hosted: HostedObject, method: str) -> bool:
    return is_inline(getattr(type(hosted.value), method, None))
