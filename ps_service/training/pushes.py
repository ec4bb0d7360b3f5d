"""The gradients that a replica has pushed, as an offer to an optimizer, or as gradients of a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ps_service.passes.gradients import Gradient
from ps_service.passes.staleness import FirstReadings
from ps_service.training.round_gradients import Contribution
from ps_wire.compression.codec import Encoded
from ps_wire.compression.registry import decode
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ps_service.hosting.objects import HostedObject
    from ps_service.training.optimizers import HostedOptimizer


class Pushed(NamedTuple):
    """A decoded gradient of a replica, and how many steps had been applied to its parameter when the
    replica read it."""

    gradient: Gradient
    steps: int


def read(hosted: HostedObject, positions: Sequence[int], gradients: Any, steps: Sequence[int]) -> list[Pushed]:
    """Decodes the gradients of a replica, for the parameters at these positions in `HostedObject.parameters`. Those of
    parameters that are frozen here are left out. `steps` had been applied to each when the replica read it. Raises
    `InvalidArgumentError` if a gradient does not fit."""
    if not isinstance(gradients, list) or not len(gradients) == len(positions) == len(steps):
        raise InvalidArgumentError("a push has a list of gradients, and for each a position and a number of steps")
    if len(set(positions)) != len(positions) or any(each >= len(hosted.parameters) for each in positions):
        raise InvalidArgumentError(f"a push names parameters twice, or some that {hosted} does not have")
    parameters, refs = list(hosted.parameters.items()), hosted.parameter_refs
    found = []
    for position, gradient, seen in zip(positions, gradients, steps, strict=True):
        name, parameter = parameters[position]
        gradient = _fitting(name, gradient, parameter)
        if parameter.requires_grad:
            found.append(Pushed(Gradient(refs[position], parameter, gradient), seen))
    return found


def contribution(optimizer: HostedOptimizer, hosted: HostedObject, pushed: Sequence[Pushed]) -> Contribution:
    """The gradients for the parameters that an optimizer covers. Those of others are left out. Raises
    `InvalidArgumentError` if it covers none of the module's parameters."""
    covered = check_covered(optimizer, hosted)
    found: list[torch.Tensor | None] = [None] * len(optimizer.covered)
    readings = FirstReadings()
    for gradient, steps in pushed:
        place = covered.get(id(gradient.parameter))
        if place is not None:
            found[place] = gradient.tensor
            readings.note([gradient.parameter], [steps])
    return Contribution(found, readings)


def left_out(
    optimizer: HostedOptimizer, hosted: HostedObject, positions: Sequence[int], made: Contribution
) -> list[int]:
    """Those of the pushed positions whose gradients are not in the contribution that was made of them."""
    if sum(each is not None for each in made.gradients) == len(positions):
        return []
    pairs = zip(optimizer.parameters, made.gradients, strict=True)
    taken = {id(parameter) for parameter, gradient in pairs if gradient is not None}
    parameters = [*hosted.parameters.values()]
    return [each for each in positions if id(parameters[each]) not in taken]


def not_taken(
    covered: Container[int], hosted: HostedObject, positions: Sequence[int], pushed: Sequence[Pushed]
) -> tuple[list[int], list[int]]:
    """Those of the pushed positions that were not read, and those of the others whose parameters are not covered. An
    optimizer covers the parameters with the `id()` in `covered`."""
    if sum(id(each.gradient.parameter) in covered for each in pushed) == len(positions):
        return [], []
    parameters, was_read = [*hosted.parameters.values()], {id(each.gradient.parameter) for each in pushed}
    left_out, not_covered = [], []
    for position in positions:
        parameter = id(parameters[position])
        if parameter not in was_read:
            left_out.append(position)
        elif parameter not in covered:
            not_covered.append(position)
    return left_out, not_covered


def check_covered(optimizer: HostedOptimizer, hosted: HostedObject) -> dict[int, int]:
    """The places of the parameters of an optimizer, by `id()`. Raises `InvalidArgumentError` if none is a module's."""
    covered = {id(parameter): place for place, parameter in enumerate(optimizer.parameters)}
    if not any(id(each) in covered for each in hosted.parameters.values()):
        raise InvalidArgumentError(f"the optimizer steps no parameter of {hosted}")
    return covered


def _fitting(name: str, gradient: Any, parameter: torch.Tensor) -> torch.Tensor:
    """The decoded gradient of a parameter."""
    if not isinstance(gradient, (torch.Tensor, Encoded)):
        raise InvalidArgumentError(f"the gradient of {name!r} is a {type(gradient).__name__}; nothing was changed")
    try:
        return decode(gradient, parameter)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the gradient of {name!r} does not fit: {error}; nothing was changed") from None
