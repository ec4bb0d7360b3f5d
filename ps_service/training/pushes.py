"""Makes an offer to an optimizer of the gradients that a replica has pushed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ps_service.passes.staleness import FirstReadings
from ps_service.training.round_gradients import Contribution
from ps_wire.compression.encoded import Encoded
from ps_wire.compression.registry import decode
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.hosting.objects import HostedObject
    from ps_service.training.optimizers import HostedOptimizer


def contribution(
    optimizer: HostedOptimizer, hosted: HostedObject, positions: Sequence[int], gradients: Any, steps: Sequence[int]
) -> Contribution:
    """The gradients for the parameters that an optimizer covers.

    Gradients of other parameters of the module, and of those that are frozen here, are left out.

    Args:
        optimizer: The optimizer.
        hosted: The module.
        positions: Positions of parameters in `HostedObject.parameters`, each at most once.
        gradients: A gradient for each: dense, sparse, or an `Encoded`. Encoded ones are decoded with the shape of the
            parameter.
        steps: The number of steps that had been applied to each when the replica read it.

    Raises:
        InvalidArgumentError: A gradient does not fit its parameter, or the optimizer covers none of the parameters.
    """
    if not isinstance(gradients, list) or not len(gradients) == len(positions) == len(steps):
        raise InvalidArgumentError("a push has a list of gradients, and for each a position and a number of steps")
    if len(set(positions)) != len(positions) or any(each >= len(hosted.parameters) for each in positions):
        raise InvalidArgumentError(f"a push names parameters twice, or some that {hosted} does not have")
    names, parameters = list(hosted.parameters), list(hosted.parameters.values())
    covered = {id(each.parameter): place for place, each in enumerate(optimizer.covered)}
    if not any(id(each) in covered for each in parameters):
        raise InvalidArgumentError(f"the optimizer steps no parameter of {hosted}")
    found: list[torch.Tensor | None] = [None] * len(optimizer.covered)
    readings = FirstReadings()
    for position, gradient, read in zip(positions, gradients, steps, strict=True):
        parameter = parameters[position]
        gradient = _fitting(names[position], gradient, parameter)
        place = covered.get(id(parameter))
        if place is not None and parameter.requires_grad:
            found[place] = gradient
            readings.note_steps(parameter, read)
    return Contribution(found, readings)


def _fitting(name: str, gradient: Any, parameter: torch.Tensor) -> torch.Tensor:
    """The decoded gradient of a parameter."""
    if not isinstance(gradient, (torch.Tensor, Encoded)):
        raise InvalidArgumentError(f"the gradient of {name!r} is a {type(gradient).__name__}; nothing was changed")
    try:
        return decode(gradient, parameter)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the gradient of {name!r} does not fit: {error}; nothing was changed") from None
