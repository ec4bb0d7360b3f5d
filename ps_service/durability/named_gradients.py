"""The gradients of an optimizer in the form that survives a restart: rows of tables have ids there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.tables.naming import Named, keyed, named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from ps_service.training.round_steps import Stepper


def named_gradients(optimizer: Stepper, gradients: Sequence[torch.Tensor | None]) -> Iterator[Named | None]:
    """Gradients of all parameters of an optimizer, in the form that survives a restart."""
    for parameter, each in zip(optimizer.parameters, gradients, strict=True):
        yield None if each is None else named(parameter, each)


def placed(optimizer: Stepper, places: Sequence[int], gradients: Sequence[Named]) -> list[torch.Tensor | None]:
    """Gradients of the parameters at these places, for all that an optimizer steps, on their devices."""
    found: list[Named | None] = [None] * len(optimizer.parameters)
    for place, gradient in zip(places, gradients, strict=True):
        found[place] = gradient
    return keyed_gradients(optimizer, found)


def keyed_gradients(optimizer: Stepper, gradients: Sequence[Named | None]) -> list[torch.Tensor | None]:
    """Gradients of all parameters of an optimizer, as this owner has them."""
    pairs = zip(optimizer.parameters, gradients, strict=True)
    return [None if each is None else keyed(parameter, each) for parameter, each in pairs]
