"""Calls methods of hosted objects, and functions; records the calls of a context."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.execution.deferred import Deferred
from ps_service.hosting.objects import MODES, HostedObject
from ps_service.hosting.references import RRef
from ps_service.parameters.locks import WouldBlock
from ps_service.passes import kept_values, table_calls
from ps_service.passes.arguments import NO, REFERENCE, VALUE, Invocation, Keep
from ps_service.passes.call_frame import CallFrame
from ps_service.passes.holders import Holders, copy_of, marked_copy_of
from ps_service.passes.results import Used, record
from ps_wire.codec.trees import mapped, parts_of
from ps_wire.errors import ContextEndedError, ContextLostError, InvalidArgumentError, RowsMovedError, TooLargeError
from ps_wire.runtime.scopes import current_scope

if TYPE_CHECKING:
    from ps_service.passes.arguments import Arguments, Recording
    from ps_service.passes.contexts import PassHost
    from ps_service.passes.pass_context import PassContext
    from ps_wire.refs import ContextId, Ref

_hosting = threading.Lock()

_NO_ARGUMENTS: Final = Holders(())
_ALONE: Final = nullcontext()

_SENT: Final = partial(mapped, change=marked_copy_of)
_STORED: Final = partial(mapped, change=copy_of)
_PRIVATE: Final = partial(mapped, change=torch.clone)
"""Make copies of the tensors of a result, because others may write to these: copies that tell whether they require
grad, that have no history, or that are part of the graph."""

SMALL_INLINE_BYTES: Final = 64 * 1024
"""Largest arguments with which a method marked `@remote(inline=True)` of an object that is no module is short without
being measured."""


def call(engine: PassHost, target: HostedObject, method: str, asked: Invocation) -> Any:
    """Runs a method of a hosted object; without a name, `forward`. Returns the result, or a `Deferred` if the method is
    marked `@async_execution`. No other code will write to the tensors of the result; they may still have a history.
    Raises as `HostedObject.method` and `Contexts.open`, and what the method raises."""
    if target.is_module:
        return _call_module(engine, target, method or "forward", asked)
    if target.is_table:
        return table_calls.call_table(engine, target, method, asked)
    if target.is_tensor:
        return call_function(engine, _method_of_tensor(engine, target, method, asked), asked)
    known = asked.method or target.method(method or "forward")
    bound, nbytes = partial(known.function, target.value), asked.arguments.nbytes
    if nbytes <= SMALL_INLINE_BYTES or not known.is_inline:
        return call_function(engine, bound, asked, known.is_deferred)
    began = known.latency.begin()
    result = call_function(engine, bound, asked, known.is_deferred)
    known.latency.end(began, nbytes)
    return result


def call_function(engine: PassHost, function: Callable[..., Any], asked: Invocation, deferred: bool = False) -> Any:
    """Runs a function, or the bound method of an object that is not a module; if it is `deferred`, it returns a future.
    Returns and raises as `call`."""
    _, args, kwargs, training, recording, keep, _ = asked
    if recording is not None:
        return _record_function(engine, function, asked, recording, deferred)
    # References to tensors inside containers are not counted, because references to the container do not show.
    holders = _NO_ARGUMENTS
    if args or kwargs:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        holders = Holders(tensors)
    with CallFrame(engine.parameter_locks, training, recorded=False, code=function) as call_frame:
        engine.parameter_locks.this_thread.nonblocking = False
        if keep is NO and not deferred:
            return holders.sent(function(*args, **kwargs))
        finish = partial(_returned, keep, call_frame, _SENT if keep is NO else _STORED)
        return Deferred(function(*args, **kwargs), finish) if deferred else finish(function(*args, **kwargs))


def _record_function(
    engine: PassHost, function: Callable[..., Any], asked: Invocation, recording: Recording, deferred: bool
) -> Any:
    arguments, keep = asked.arguments, asked.keep
    context = engine.contexts.open(recording.context, recording.call.caller)
    call_frame = CallFrame(engine.parameter_locks, asked.training, recorded=True, code=function, held=context.held)
    call_frame.context, call_frame.uses_rows = context, arguments.uses_rows
    with call_frame, context.calling(engine.membership, recording.place):
        args, kwargs = arguments.enter((asked.args, asked.kwargs))
        engine.parameter_locks.this_thread.nonblocking = False
        own = kept_values.unchanged if _is_torchs(function) else _PRIVATE

        def finish(result: Any) -> Any:
            computed = result if keep is NO and own is _PRIVATE else None
            result = _returned(keep, call_frame, own, result)
            used = Used(call_frame.leaves, call_frame.steps, values=call_frame.values)
            made = record(engine, context, recording.call, arguments, used, result, computed=computed)
            if deferred and call_frame.tables:
                # From the return of the function until now, the pass did not count as one that uses them.
                _check_rows(call_frame, context, recording)
            return made

        return Deferred(function(*args, **kwargs), finish) if deferred else finish(function(*args, **kwargs))


def _check_rows(call_frame: CallFrame, context: PassContext, recording: Recording) -> None:
    try:
        call_frame.check_rows()
    except RowsMovedError:
        context.drop(recording.call)
        raise


def _method_of_tensor(engine: PassHost, target: HostedObject, method: str, asked: Invocation) -> Callable[..., Any]:
    """The method of a tensor that stays here, which may have a history in a pass."""
    function = engine.allowlist.functions.method(method)
    kept = asked.arguments.local(target)
    is_needed = target.history is not None and target.history.context in engine.contexts
    if _writes(method) and is_needed:
        raise InvalidArgumentError(
            f"{method} would write in place to a result that a pass will propagate through, and its gradient would "
            f"not know of that; keep the result of the function that does not write, or wait for the pass to end"
        )

    def bound(*args: Any, **kwargs: Any) -> Any:
        result = function(kept.local_value(), *args, **kwargs)
        if not is_needed or asked.keep is not REFERENCE:
            return result
        # A view that stays here could be written to later.
        return mapped(result, lambda tensor: tensor if tensor.requires_grad else tensor.clone())

    return bound


def _call_module(engine: PassHost, target: HostedObject, code: str, asked: Invocation) -> Any:
    method = asked.method or target.method(code)
    if method.is_deferred:
        raise _cannot_be_deferred(target, code)
    arguments, args, kwargs, training, recording, keep, _ = asked
    this_thread = engine.parameter_locks.this_thread
    may_restart = not method.is_inline and this_thread.nonblocking
    if may_restart and arguments.has_handles:
        method.note(0.0, waited=True)  # it may wait for others, and never runs here
        raise WouldBlock
    recorded = recording is not None
    context = None if recording is None else engine.contexts.open(recording.context, recording.call.caller)
    if code in MODES:
        training = None
    held = None if context is None else context.held
    nbytes = None if arguments.has_handles else arguments.nbytes
    with (
        CallFrame(engine.parameter_locks, training, recorded, recorded, code, held, nbytes) as call_frame,
        _ALONE if recording is None or context is None else context.calling(engine.membership, recording.place),
    ):
        # For forward the module itself is called, so that its hooks and a `__call__` of its class run.
        function: Callable[..., Any] = operator.call if code == "forward" else method.function
        run = partial(function, call_frame.bind(target, is_target=True))
        if not may_restart:
            this_thread.nonblocking = False
        elif not call_frame.is_on_view:
            raise WouldBlock  # it may change the module, and must not begin twice
        if recorded:
            call_frame.context, call_frame.uses_rows = context, arguments.uses_rows
            args, kwargs = arguments.enter((args, kwargs))
        began, stops = method.latency.begin(), WouldBlock.stops.count
        try:
            if target.layer_check is None:
                result = run(*args, **kwargs)
            else:
                # Trainers choose the settings of torch's layers, so these are checked like functions by name.
                with engine.allowlist.functions.checking(target.class_name, target.layer_check, args, kwargs):
                    result = run(*args, **kwargs)
        finally:
            if WouldBlock.stops.count != stops:
                method.note(0.0, waited=True)  # it never runs here again
                raise _stopped(target, code) from None
        seconds = method.latency.end(began, arguments.nbytes)
        if may_restart:
            this_thread.nonblocking = False  # it can no longer be restarted, and may wait from here on
        if not method.is_inline and call_frame.is_on_view:
            scope = None if may_restart else current_scope.get()
            method.note(seconds, waited=scope is not None and scope.has_nested)
        del run  # no variable of this function may refer to the module now
        result = _returned(keep, call_frame, call_frame.own, result)
        if recording is None or context is None:
            return result
        # Code of the module that runs in the backward may make requests.
        inline_backward = method.is_inline or (method.may_run_inline and not call_frame.is_held)
        latency = method.backward_latency if inline_backward else None
        others, shares = call_frame.uses_others, call_frame.count_saved()
        used = Used(call_frame.leaves, call_frame.steps, others, shares, call_frame.values)
        return record(engine, context, recording.call, arguments, used, result, latency)


def _cannot_be_deferred(target: HostedObject, code: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{code} of {target} is decorated with @async_execution, which methods of modules cannot be: parameters are "
        "lent to a call only while it runs. Decorate a function with it, and call the module through its reference"
    )


def _stopped(target: HostedObject, code: str) -> ContextLostError:
    return ContextLostError(
        f"{code} of {target} had to wait for others, which it never did before, and could not; what it has done so far "
        "may stay. Run the pass again"
    )


def fetch(engine: PassHost, ref: Ref, arguments: Arguments, recording: Recording | None = None) -> Any:
    """A copy of the value of a handle; recorded if the value has a history in the pass. Raises as `Registry.find`;
    `InvalidArgumentError` if the value is a module, which cannot be sent; and `ContextLostError` if this owner has lost
    the pass, and the history of the value with it."""
    target = engine.registry.find(ref)
    if recording is not None:
        if _is_differentiable(target, ref, recording.context):
            kept = arguments.local(target, ref.parameter)
            return call_function(engine, kept.local_value, Invocation(arguments, (), {}, True, recording))
        with suppress(ContextEndedError):
            engine.contexts.get(recording.context)
    if not target.is_module:
        try:
            return mapped(target.value, marked_copy_of)
        except RecursionError:
            raise TooLargeError(f"{target} contains itself, or is nested too deeply, and cannot be sent") from None
    if not ref.parameter:
        raise InvalidArgumentError(f"{target} stays where it is; call it, or ask for its state_dict()")
    with engine.parameter_locks.reading(
        [target.parameter(ref.parameter)], [target.parameter_state(ref.parameter)]
    ) as reading:
        return marked_copy_of(reading.leaves[0])


def _is_differentiable(target: HostedObject, ref: Ref, context: ContextId) -> bool:
    """Whether gradients of a pass go back through a copy of the value of a handle."""
    if ref.parameter:
        return target.parameter(ref.parameter).requires_grad
    if target.history is not None and target.history.context == context:
        return True
    parts = () if target.is_module else parts_of(target.value)
    return any(isinstance(part, torch.Tensor) and part.requires_grad for part in parts)


def hosted(engine: PassHost, rref: RRef, trainer: bytes = b"", object_id: str = "") -> HostedObject:
    """The object that a reference refers to. A value that is not hosted yet becomes an anonymous object, as it is, with
    a random id if none is given. Its bytes count for the trainer that has made it, if any.

    A value that a recorded call has computed, or that was computed with parts of a module that belong to a call, is
    detached, in copies of its containers, so that the object does not keep the graph of the pass. Raises
    `OverloadedError` if the trainer holds too much already, and `InvalidArgumentError` if the id is in use.
    """
    with _hosting:
        found = rref.hosted
        if found is None:
            if trainer:
                engine.held.check(trainer)
            value = rref.local_value()
            detached = rref.is_lent or rref.history is not None
            if detached:
                value = mapped(value, lambda tensor: tensor if tensor.grad_fn is None else tensor.detach())
            found = HostedObject(engine.name, value, engine.parameter_locks, object_id=object_id)
            found.is_detached = detached
            if trainer:
                found.shares = engine.held.of(trainer).shares(value)
                found.account = engine.quotas.account_of(trainer)
                if engine.quotas.is_on:
                    engine.registry.check_room(found)
            if rref.history is not None:
                found.history = rref.history
            if object_id:
                engine.registry.check_new(object_id)
                engine.registry.restore(found)
            rref.adopt(found)
    # This may be the last reference to it.
    engine.registry.restore(found)
    return found


def _returned(keep: Keep, call_frame: CallFrame, own: Callable[[Any], Any], result: Any) -> Any:
    """The result of a call, or a reference to it."""
    if keep is REFERENCE and not isinstance(result, RRef):
        rref = RRef(result)
        # A parameter of a module stays where it is.
        if rref.hosted is not None or call_frame.may_stay(result):
            return rref
    result = own(result)
    if keep is VALUE:
        return RRef(result if isinstance(result, torch.Tensor) else kept_values.by_value(result))
    return RRef(result) if keep is REFERENCE and not isinstance(result, RRef) else result


def _writes(method: str) -> bool:
    """Whether a method of tensors writes to the tensor."""
    if method.endswith("__"):
        return method.startswith("__i") and hasattr(torch.Tensor, f"__{method[3:]}")
    return method.endswith("_")


def _is_torchs(function: Callable[..., Any]) -> bool:
    return (getattr(function, "__module__", None) or "torch").split(".")[0] == "torch"
