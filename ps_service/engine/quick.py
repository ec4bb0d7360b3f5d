"""Quick: what may run on the event loop, because a hop to a thread would take longer than the work.

That is asked before a request is taken up. Torch's own layers and optimizers wait for nothing, and how long they take
has been seen; of other code the author has to promise it, with `@remote(quick=True)`. Only a step in progress could
still make such a request wait; then it gives way (`Ledger.hurry`) and goes to a thread after all.
"""

from __future__ import annotations

from ps_service.engine.engine import Engine
from ps_service.state.objects import HostedObject
from ps_service.state.optimizers import HostedOptimizer
from ps_wire import marks
from ps_wire.refs import CallKey, ContextId, Ref


def call(engine: Engine, target: Ref, method: str) -> bool:
    """Whether a call is quick.

    Raises:
        ForeignHandleError, StaleHandleError, UnknownNameError: The handle refers to nothing here.
    """
    hosted = engine.registry.find(target)
    if marks.is_deferred(getattr(type(hosted.value), method or "forward", None)):
        return False
    if hosted.skins is None:
        return _is_promised(hosted, method)
    # A promise is not enough where the size of what is sent decides.
    return hosted.pace.is_quick and (hosted.is_layer or _is_promised(hosted, method or "forward"))


def backward(engine: Engine, context: ContextId, call: CallKey) -> bool:
    """Whether the backward of a call is quick.

    Raises:
        ContextEndedError, ContextLostError: The pass is not here.
    """
    return engine.contexts.find(context).record(call).is_quick


def step(engine: Engine, optimizer: Ref) -> bool:
    """Whether a step is quick.

    Raises:
        ForeignHandleError, StaleHandleError, UnknownNameError: The handle refers to nothing here.
    """
    value = engine.registry.find(optimizer).value
    return isinstance(value, HostedOptimizer) and value.pace.is_quick and value.is_torchs


def _is_promised(hosted: HostedObject, method: str) -> bool:
    return marks.is_quick(getattr(type(hosted.value), method, None))
