"""Copies of an optimizer's state, and of what a step writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import optim


class StepUndo:
    """A copy of parameters that a step will write, and of an optimizer's whole state and options, to restore when the
    step raises halfway."""

    def __init__(self, optimizer: optim.Optimizer, parameters: Sequence[torch.Tensor]) -> None:
        self._optimizer = optimizer
        self._values = [(parameter, parameter.data.clone()) for parameter in parameters]
        self._state = {parameter: copied(optimizer.state[parameter]) for parameter in list(optimizer.state)}
        self._options = [
            {key: copied(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]

    def restore(self) -> None:
        """Gives the parameters and the optimizer what they had when this copy was made."""
        for parameter, value in self._values:
            parameter.data.copy_(value)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        for group, options in zip(self._optimizer.param_groups, self._options, strict=True):
            members = group["params"]
            group.clear()
            group.update(params=members, **options)


def copied(value: Any) -> Any:
    """A deep copy of containers and tensors; other values stay the same objects."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copied(item) for item in value)
    return value
