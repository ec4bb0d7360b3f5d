"""Calls methods of hosted objects, and functions; records the calls of a context."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn

from ps_service.execution.deferred import Deferred
from ps_service.hosting.objects import HostedObject
from ps_service.hosting.references import RRef
from ps_service.passes.call_frame import CallFrame
from ps_service.passes.holders import Holders
from ps_service.passes.results import Results
from ps_wire import decorators
from ps_wire.codec.trees import mapped
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.passes.arguments import Arguments
    from ps_wire.refs import CallKey, ContextId, Ref

_hosting = threading.Lock()

_NO_ARGUMENTS: Final = Holders(())


class Recording(NamedTuple):
    """Asks for a call to be recorded.

    Attributes:
        context: The pass it belongs to.
        call: Who made it, and its number.
        place: Its number, after those of the calls in which it is nested.
    """

    context: ContextId
    call: CallKey
    place: tuple[int, ...] = ()


def call(
    engine: Engine,
    target: HostedObject,
    method: str,
    arguments: Arguments,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    training: bool,
    recording: Recording | None = None,
    keep: bool = False,
) -> Any:
    """Runs a method of a hosted object.

    Args:
        target: The object.
        method: Name of the method; empty for `forward`.
        arguments: Through which `args` and `kwargs` were read.
        args: Its arguments.
        kwargs: Its keyword arguments.
        training: Whether modules run in training or in evaluation mode.
        recording: Under which context to record it, if at all.
        keep: Whether the result stays here, and a reference to it is wanted.

    Returns:
        What the method returned, or a `Deferred` if it is decorated with `@async_execution`. Nothing else will write to
        its tensors; they may still have a history.

    Raises:
        UnknownNameError, NotAllowedError: The method cannot be called.
        ContextEndedError: The context has ended.
        Exception: Whatever the method raises.
    """
    is_tensor = isinstance(target.value, torch.Tensor) and target.bound_copies is None
    function = engine.allowlist.functions.method(method) if is_tensor else target.method(method or "forward")
    if target.bound_copies is not None:
        code = method or "forward"
        return _call_module(engine, target, function, code, arguments, args, kwargs, training, recording, keep)
    if is_tensor:
        # A kept tensor may have a history.
        kept = arguments.local(target)
        deferred = False
        if _writes(method) and target.history is not None and target.history.context in engine.contexts:
            raise InvalidArgumentError(
                f"{method} would write in place to a result that a pass will propagate through, and its gradient would "
                f"not know of that; keep the result of the function that does not write, or wait for the pass to end"
            )

        def bound(*args: Any, **kwargs: Any) -> Any:
            return function(kept.local_value(), *args, **kwargs)

    else:
        deferred = decorators.is_deferred(function)
        bound = partial(function, target.value)
    return call_function(engine, bound, arguments, args, kwargs, training, recording, deferred, keep)


def call_function(
    engine: Engine,
    function: Callable[..., Any],
    arguments: Arguments,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    training: bool,
    recording: Recording | None = None,
    deferred: bool = False,
    keep: bool = False,
) -> Any:
    """Runs a function, or the method of an object that is no module.

    Args:
        function: What to run.
        arguments: Through which `args` and `kwargs` were read.
        args: Its arguments.
        kwargs: Its keyword arguments.
        training: The mode of modules to which it gets handles.
        recording: Under which context to record it, if at all.
        deferred: Whether it returns a future of its result.
        keep: Whether the result stays here, and a reference to it is wanted.

    Returns:
        As `call`.

    Raises:
        ContextEndedError: The context has ended.
        Exception: Whatever the function raises.
    """
    if recording is None:
        # Tensors inside containers are not counted: what holds the container is not among their holders.
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        holders = Holders(tensors) if tensors else _NO_ARGUMENTS
        with CallFrame(engine.parameter_locks, training, recorded=False, code=function):
            engine.parameter_locks.allow_blocking()
            if deferred:
                return Deferred(function(*args, **kwargs), partial(_kept, keep, holders.private))
            if keep:
                return _kept(keep, holders.private, function(*args, **kwargs))
            return holders.private(function(*args, **kwargs))
    results = Results(engine, recording.context, recording.call, arguments)
    call_frame = CallFrame(engine.parameter_locks, training, recorded=True, code=function, held=results.held)
    with call_frame:
        if results.nested_pass is not None:
            call_frame.calling(results.nested_pass.calling(recording.place))
        entry, (args, kwargs) = arguments.enter((args, kwargs))
        engine.parameter_locks.allow_blocking()
        record = partial(results.record, entry, call_frame.leaves, None, False)
        own = _same if _is_torchs(function) else _private

        def finish(result: Any) -> Any:
            return record(_kept(keep, own, result))

        if deferred:
            return Deferred(function(*args, **kwargs), finish)
        return finish(function(*args, **kwargs))


def _call_module(
    engine: Engine,
    target: HostedObject,
    function: Callable[..., Any],
    code: str,
    arguments: Arguments,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    training: bool,
    recording: Recording | None,
    keep: bool,
) -> Any:
    # The module itself is called for forward, so that its hooks run, and a `__call__` of its class.
    run: Callable[..., Any] = operator.call if code == "forward" else function
    if decorators.is_deferred(function):
        raise InvalidArgumentError(
            f"{code} of {target} is decorated with @async_execution, which methods of modules cannot be: "
            "parameters are lent to a call only while it runs. Decorate a function with it, and call the "
            "module through its reference"
        )
    recorded = recording is not None
    results = Results(engine, recording.context, recording.call, arguments) if recording is not None else None
    held = results.held if results is not None else None
    with CallFrame(engine.parameter_locks, training, recorded, recorded, code, held) as call_frame:
        if recording is not None and results is not None and results.nested_pass is not None:
            call_frame.calling(results.nested_pass.calling(recording.place))
        run = partial(run, call_frame.bind(target))
        engine.parameter_locks.allow_blocking()
        entry = None
        if recorded:
            entry, (args, kwargs) = arguments.enter((args, kwargs))
        may_be_inline = target.is_layer or decorators.is_inline(function)
        began = target.latency.begin() if may_be_inline else None
        if target.layer_check is None:
            result = run(*args, **kwargs)
        else:
            # Layers of torch run with settings that trainers chose: what they do is checked as functions by name are.
            with engine.allowlist.functions.checking(target.class_name, target.layer_check, args, kwargs):
                result = run(*args, **kwargs)
        if began is not None:
            target.latency.end(began)
        del run  # only the graph may hold on to the module
        result = call_frame.own(result)
        if keep and not isinstance(result, RRef):
            result = RRef(result)
        if results is None:
            return result
        return results.record(
            entry, call_frame.leaves, target.backward_latency if may_be_inline else None, True, result
        )


def fetch(engine: Engine, ref: Ref, arguments: Arguments, recording: Recording | None = None) -> Any:
    """A copy of what a handle refers to; recorded, if that has a history in the pass.

    Raises:
        ForeignHandleError, StaleHandleError, UnknownNameError: It does not refer to anything here.
        InvalidArgumentError: It is a module, which does not travel.
    """
    target = engine.registry.find(ref)
    if target.bound_copies is None:
        if recording is not None and target.history is not None and target.history.context == recording.context:
            kept = arguments.local(target)
            return call_function(engine, kept.local_value, arguments, (), {}, True, recording)
        return mapped(target.value, lambda tensor: tensor.detach().clone())
    if not ref.parameter:
        raise InvalidArgumentError(f"{target} stays where it is; call it, or ask for its state_dict()")
    with engine.parameter_locks.reading(
        [target.parameter(ref.parameter)], [target.parameter_state(ref.parameter)]
    ) as reading:
        return reading.leaves[0].detach().clone()


def hosted(engine: Engine, rref: RRef, trainer: bytes = b"") -> HostedObject:
    """What a reference refers to; a new value becomes an anonymous object of this owner now.

    Args:
        rref: The reference.
        trainer: For whom a new value counts; for nobody, if it is empty.

    Raises:
        OverloadedError: The trainer holds too much already.
    """
    with _hosting:
        found = rref.hosted
        if found is None:
            if trainer:
                engine.held.check(trainer)
            value = rref.local_value()
            value = mapped(value, lambda tensor: tensor if isinstance(tensor, nn.Parameter) else tensor.detach())
            found = HostedObject(engine.name, value, engine.parameter_locks)
            if trainer:
                found.shares = engine.held.of(trainer).shares(value)
            found.history = rref.history
            rref.adopt(found)
    # It may have been given up by everybody but who holds this reference.
    engine.registry.restore(found)
    return found


def _kept(keep: bool, own: Callable[[Any], Any], result: Any) -> Any:
    """What a call gives: its result, or a reference to it."""
    result = own(result)
    return RRef(result) if keep and not isinstance(result, RRef) else result


def _writes(method: str) -> bool:
    """Whether a method of tensors writes to the tensor itself."""
    if method.endswith("__"):
        return method.startswith("__i") and hasattr(torch.Tensor, f"__{method[3:]}")
    return method.endswith("_")


def _same(result: Any) -> Any:
    return result


def _private(result: Any) -> Any:
    """The result with copies, in the graph, of its tensors: the function may have kept them."""
    return mapped(result, torch.clone)


def _is_torchs(function: Callable[..., Any]) -> bool:
    return (getattr(function, "__module__", None) or "torch").split(".")[0] == "torch"
