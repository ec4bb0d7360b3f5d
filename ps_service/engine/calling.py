"""Calling: methods of hosted objects, run on private skins, and recorded when a context asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ps_service.engine.engine import Engine
from ps_service.engine.frame import Frame
from ps_service.engine.holders import Holders
from ps_service.state.contexts import Record
from ps_service.state.entry import Entry
from ps_service.state.objects import HostedObject
from ps_service.state.rrefs import RRef
from ps_wire import marks
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import ContextId, Ref
from ps_wire.trees import mapped, tensors_in


@dataclass(frozen=True, slots=True)
class Recording:
    """Asks for a call to be recorded.

    Attributes:
        context: The pass it belongs to.
        call: Its number in the pass.
    """

    context: ContextId
    call: int


class Arguments:
    """Reads the tensors and handles among the arguments of one call.

    Args:
        engine: The owner they come to.
        recorded: Whether tensors that want a gradient shall be able to get one.

    Attributes:
        wanting: The tensors that want one.
    """

    def __init__(self, engine: Engine, recorded: bool) -> None:
        self._engine = engine
        self._recorded = recorded
        self.wanting: list[torch.Tensor] = []

    def tensor(self, tensor: torch.Tensor, wants_grad: bool) -> torch.Tensor:
        """What hosted code shall see of a tensor that arrived."""
        if self._engine.device.type != "cpu":
            tensor = tensor.to(self._engine.device)
        if self._recorded and wants_grad:
            self.wanting.append(tensor)
        return tensor

    def handle(self, ref: Ref) -> RRef:
        """What hosted code shall see of a handle that arrived.

        Raises:
            ForeignHandleError, StaleHandleError, UnknownNameError: It does not refer to anything here.
        """
        return RRef.to(self._engine.registry.find(ref), ref.parameter)


def call(
    engine: Engine,
    target: HostedObject,
    method: str,
    arguments: Arguments,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    training: bool,
    recording: Recording | None = None,
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

    Returns:
        What the method returned. Nobody else will write to its tensors; they may still have a history.

    Raises:
        UnknownNameError, NotAllowedError: The method cannot be called.
        ContextEndedError: The context has ended.
        Exception: Whatever the method raises.
    """
    method = method or "forward"
    function = target.method(method)
    is_module = target.skins is not None
    context = engine.contexts.open(recording.context) if recording is not None and is_module else None
    with Frame(engine.ledger, training, recorded=context is not None) as frame:
        if not is_module:
            # Not those inside containers: who keeps a container is not among the holders of what is in it.
            tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
            holders = Holders(tensors)
            engine.ledger.take_time()
            return holders.private(function(target.value, *args, **kwargs))
        # The module itself is called for forward, so that its hooks run.
        run: Callable[..., Any] = nn.Module.__call__ if method == "forward" else function
        module = frame.borrow(target)
        engine.ledger.take_time()
        if context is None or recording is None:
            with target.pace.measured():
                return frame.own(run(module, *args, **kwargs))
        entry, (args, kwargs) = _entered(arguments.wanting, (args, kwargs))
        with target.pace.measured():
            result = frame.own(run(module, *args, **kwargs))
        outputs = list(tensors_in(result))
        pace = target.backward_pace if target.is_layer or marks.is_quick(function) else None
        context.add(recording.call, Record(outputs, entry, len(arguments.wanting), frame.leaves, pace))
        return result


def fetch(engine: Engine, ref: Ref) -> Any:
    """A copy of what a handle refers to.

    Raises:
        ForeignHandleError, StaleHandleError, UnknownNameError: It does not refer to anything here.
        InvalidArgumentError: It is a module, which does not travel.
    """
    target = engine.registry.find(ref)
    if target.skins is None:
        return mapped(target.value, lambda tensor: tensor.detach().clone())
    if not ref.parameter:
        raise InvalidArgumentError(f"{target} stays where it is; call it, or ask for its state_dict()")
    with engine.ledger.reading([target.parameter(ref.parameter)], [target.cell(ref.parameter)]) as reading:
        return reading.leaves[0].detach().clone()


def keep(engine: Engine, value: Any) -> HostedObject:
    """Makes a value an anonymous object of this owner."""
    value = mapped(value, lambda tensor: tensor if isinstance(tensor, nn.Parameter) else tensor.detach())
    return engine.registry.add(HostedObject(engine.name, value, engine.ledger))


def _entered(wanting: Sequence[torch.Tensor], arguments: Any) -> tuple[Entry | None, Any]:
    """Lets the tensors that want a gradient enter the graph, and puts what comes out in their place."""
    if not wanting:
        return None, arguments
    entry = Entry()
    entered = entry.enter(list(wanting))
    by_id = {id(before): after for before, after in zip(wanting, entered, strict=True)}
    return entry, mapped(arguments, lambda tensor: by_id.get(id(tensor), tensor))
