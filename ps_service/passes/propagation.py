"""Runs backwards, and reads and scales gradients.

Contexts that have ended raise a `ContextEndedError`, or a `ContextLostError` if this owner has lost them. Handles of
parameters that are not here raise an `UnknownNameError`, a `StaleHandleError` or a `ForeignHandleError`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ps_service.passes.records import Gathered
from ps_wire.compression.codec import Encoded
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject
    from ps_service.passes.contexts import PassHost
    from ps_service.passes.gradients import Gradient, Turn
    from ps_wire.refs import CallKey, ContextId, Ref


def backward(
    engine: PassHost,
    context_id: ContextId,
    call: CallKey,
    positions: Sequence[int],
    gradients: Sequence[Any],
    retain_graph: bool,
    turn: Turn | None = None,
    changed: dict[HostedObject, bool] | None = None,
) -> list[torch.Tensor | None]:
    """Propagates the gradients of a recorded call's outputs, including results that stayed on this owner.

    Adds the gradients of parameters to the context, and returns those of the inputs, one per input that needs one.
    Gradients of results of earlier calls wait for the backward of those calls. An `Encoded` is decoded with the shape
    and dtype of its output. Without a turn, gradients are added as they arrive. `changed` is that of
    `Record.backward`, and so is what it raises.
    """
    found_all, as_sent = True, engine.device.type == "cpu"
    for gradient in gradients:
        if isinstance(gradient, Encoded):
            as_sent = False
        elif not isinstance(gradient, torch.Tensor):
            found_all = False
    if not found_all or len(positions) != len(gradients):
        raise InvalidArgumentError(f"{len(positions)} outputs need as many gradients, all of them tensors")
    context = engine.contexts.find(context_id)
    record = context.record(call)
    if not as_sent:
        gradients = list(map(record.placed, positions, gradients))
    found = record.backward(positions, gradients, retain_graph, 0 if turn is None else turn.backward, changed)
    context.accumulate(found.of_parameters, turn)
    for kept, gradient in found.of_kept:
        place = (call.number,) if turn is None else turn.place
        of_kept = context.record(kept.call)
        if engine.device.type != "cpu":
            gradient = of_kept.placed(kept.position, gradient)
        of_kept.gather(kept.position, Gathered(place, gradient, context.held.shares(gradient)))
    return found.of_inputs


def gradients(engine: PassHost, context_id: ContextId) -> list[Gradient]:
    """Copies of the gradients of a context; empty if it was not used here."""
    context = engine.contexts.get(context_id)
    if context is None:
        return []
    return [each._replace(tensor=each.tensor.clone()) for each in context.gradients()]


def others(engine: PassHost, context_id: ContextId) -> list[str]:
    """Names of the owners that this one has called in a context."""
    context = engine.contexts.get(context_id)
    called = None if context is None else context.called
    return [] if called is None else called.others()


def power_sum(engine: PassHost, context_id: ContextId, refs: Sequence[Ref], norm_type: float) -> float:
    """The sum of |g|^p over the gradients of some parameters, or the largest |g| when p is infinite. A norm that is not
    positive is an `InvalidArgumentError`."""
    if not norm_type > 0:
        raise InvalidArgumentError(f"the norm must be positive, not {norm_type}")
    context = engine.contexts.get(context_id)
    parameters = [parameter_of(engine, ref) for ref in refs]
    found = [] if context is None else context.gradients_of(parameters)
    norms = [_norm(gradient, norm_type) for gradient in found if gradient is not None]
    if math.isinf(norm_type):
        # Of torch, for which NaN is the largest; for Python it depends on the order.
        return float(torch.tensor([0.0, *norms], dtype=torch.float64, device="cpu").max())
    try:
        return math.fsum(norm**norm_type for norm in norms)
    except OverflowError:
        return math.inf


def scale(engine: PassHost, context_id: ContextId, refs: Sequence[Ref], factor: float) -> None:
    """Multiplies the gradients of some parameters in a context."""
    parameters = [parameter_of(engine, ref) for ref in refs]
    context = engine.contexts.get(context_id)
    if context is not None:
        context.scale(parameters, factor)


def parameter_of(engine: PassHost, ref: Ref) -> torch.Tensor:
    """The parameter that a handle refers to."""
    return engine.registry.find(ref).parameter(ref.parameter)


def _norm(gradient: torch.Tensor, norm_type: float) -> float:
    # Entries with the same index in an uncoalesced gradient count as one.
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return float(torch.linalg.vector_norm(values, norm_type))
