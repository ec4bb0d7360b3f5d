"""Calling: methods of hosted objects and functions, recorded when a context asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ps_service.engine.arguments import Arguments
from ps_service.engine.deferred import Deferred
from ps_service.engine.engine import Engine
from ps_service.engine.frame import Frame
from ps_service.engine.holders import Holders
from ps_service.engine.results import Results
from ps_service.state.objects import HostedObject
from ps_service.state.records import Passage
from ps_service.state.rrefs import RRef
from ps_wire import marks
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import CallKey, ContextId, Ref
from ps_wire.trees import mapped

_hosting = threading.Lock()


@dataclass(frozen=True, slots=True)
class Recording:
    """Asks for a call to be recorded.

    Attributes:
        context: The pass it belongs to.
        call: Who made it, and its number.
    """

    context: ContextId
    call: CallKey


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
        What the method returned, or a `Deferred` if it wears `@async_execution`. Nobody else will write to its tensors;
        they may still have a history.

    Raises:
        UnknownNameError, NotAllowedError: The method cannot be called.
        ContextEndedError: The context has ended.
        Exception: Whatever the method raises.
    """
    function = target.method(method or "forward")
    if target.skins is not None:
        return _call_module(engine, target, function, arguments, args, kwargs, training, recording, keep)
    if isinstance(target.value, torch.Tensor):
        # A kept tensor may have a history.
        kept = arguments.local(target)
        deferred = False

        def bound(*args: Any, **kwargs: Any) -> Any:
            return function(kept.local_value(), *args, **kwargs)

    else:
        deferred = marks.is_deferred(function)
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
    # Whoever keeps a container is not among the holders of what is in it: those inside are not counted.
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    if recording is None:
        holders = Holders(tensors)
        with Frame(engine.ledger, training, recorded=False) as frame:
            engine.ledger.take_time()
            if deferred:
                return Deferred(function(*args, **kwargs), partial(_kept, keep, holders.private))
            if keep:
                return _kept(keep, holders.private, function(*args, **kwargs))
            return holders.private(function(*args, **kwargs))
    results = Results(engine, recording.context, recording.call, arguments)
    with Frame(engine.ledger, training, recorded=True) as frame, _calling(results.passage):
        entry, (args, kwargs) = arguments.enter((args, kwargs))
        engine.ledger.take_time()
        record = partial(results.record, entry, frame.leaves, None, False)
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
    arguments: Arguments,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    training: bool,
    recording: Recording | None,
    keep: bool,
) -> Any:
    # The module itself is called for forward, so that its hooks run.
    run: Callable[..., Any] = nn.Module.__call__ if function.__name__ == "forward" else function
    if marks.is_deferred(function):
        raise InvalidArgumentError(
            f"{function.__name__} of {target} wears @async_execution, and methods of modules cannot: parameters are "
            "lent to a call only while it runs. Let a function wear it, and call the module through its reference"
        )
    if recording is None:
        with Frame(engine.ledger, training, recorded=False, grad=False) as frame:
            module = frame.borrow(target)
            engine.ledger.take_time()
            with target.pace.measured():
                result = run(module, *args, **kwargs)
            return _kept(keep, frame.own, result)
    results = Results(engine, recording.context, recording.call, arguments)
    with Frame(engine.ledger, training, recorded=True) as frame, _calling(results.passage):
        module = frame.borrow(target)
        engine.ledger.take_time()
        entry, (args, kwargs) = arguments.enter((args, kwargs))
        with target.pace.measured():
            result = run(module, *args, **kwargs)
        pace = target.backward_pace if target.is_layer or marks.is_quick(function) else None
        return results.record(entry, frame.leaves, pace, True, _kept(keep, frame.own, result))


def fetch(engine: Engine, ref: Ref, arguments: Arguments, recording: Recording | None = None) -> Any:
    """A copy of what a handle refers to; recorded, if that has a history in the pass.

    Raises:
        ForeignHandleError, StaleHandleError, UnknownNameError: It does not refer to anything here.
        InvalidArgumentError: It is a module, which does not travel.
    """
    target = engine.registry.find(ref)
    if target.skins is None:
        if recording is not None and target.history is not None and target.history.context == recording.context:
            kept = arguments.local(target)
            return call_function(engine, kept.local_value, arguments, (), {}, True, recording)
        return mapped(target.value, lambda tensor: tensor.detach().clone())
    if not ref.parameter:
        raise InvalidArgumentError(f"{target} stays where it is; call it, or ask for its state_dict()")
    with engine.ledger.reading([target.parameter(ref.parameter)], [target.cell(ref.parameter)]) as reading:
        return reading.leaves[0].detach().clone()


def hosted(engine: Engine, rref: RRef) -> HostedObject:
    """What a reference refers to; a new value becomes an anonymous object of this owner now."""
    with _hosting:
        found = rref.hosted
        if found is None:
            value = rref.local_value()
            value = mapped(value, lambda tensor: tensor if isinstance(tensor, nn.Parameter) else tensor.detach())
            found = HostedObject(engine.name, value, engine.ledger)
            found.history = rref.history
            rref.adopt(found)
    # It may have been given up by everybody but who holds this reference.
    engine.registry.revive(found)
    return found


def _kept(keep: bool, own: Callable[[Any], Any], result: Any) -> Any:
    """What a call gives: its result, or a reference to it."""
    result = own(result)
    return RRef(result) if keep and not isinstance(result, RRef) else result


def _same(result: Any) -> Any:
    return result


def _calling(passage: Passage | None) -> AbstractContextManager[None]:
    return nullcontext() if passage is None else passage.calling()


def _private(result: Any) -> Any:
    """The result with copies, in the graph, of its tensors: the function may have kept them."""
    return mapped(result, torch.clone)


def _is_torchs(function: Callable[..., Any]) -> bool:
    return (getattr(function, "__module__", None) or "torch").split(".")[0] == "torch"
