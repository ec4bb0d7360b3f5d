"""Quick: what may run on the event loop, because a hop to a thread would take longer than the work.

That is asked before a request is taken up. Torch's own layers and optimizers wait for nothing, and how long they take
has been seen; of other code the author has to promise it, with `@remote(inline=True)`. Only a step in progress could
still make such a request wait; then it gives way (`ParameterLocks.hurry`) and goes to a thread after all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.training.optimizers import HostedOptimizer
from ps_wire import decorators

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_wire.refs import CallKey, ContextId, Ref


def call(engine: Engine, target: Ref, method: str) -> bool:
    """Whether a call is quick.

    Raises:
        ForeignHandleError, StaleHandleError, UnknownNameError: The handle refers to nothing here.
    """
    hosted = engine.registry.find(target)
    if decorators.is_deferred(getattr(type(hosted.value), method or "forward", None)):
        return False
    if hosted.bound_copies is None:
        return _is_promised(hosted, method)
    # A promise is not enough where the size of what is sent decides.
    return hosted.latency.is_short and (hosted.is_layer or _is_promised(hosted, method or "forward"))


def backward(engine: Engine, context: ContextId, call: CallKey) -> bool:
    """Whether the backward of a call is quick.

    Raises:
        ContextEndedError, ContextLostError: The pass is not here.
    """
    return engine.contexts.find(context).record(call).is_inline


def step(engine: Engine, optimizer: Ref) -> bool:
    """Whether a step is quick.

    Raises:
        ForeignHandleError, StaleHandleError, UnknownNameError: The handle refers to nothing here.
    """
    value = engine.registry.find(optimizer).value
    return isinstance(value, HostedOptimizer) and value.latency.is_short and value.is_torchs


def _is_promised(hosted: HostedObject, method: str) -> bool:
    return decorators.is_inline(getattr(type(hosted.value), method, None))
