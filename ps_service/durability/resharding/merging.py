"""What several owners know of one thing, together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from ps_service.durability.store import CheckpointError


def same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal, tensors included."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def merged(values: Sequence[Any]) -> Any:
    """One value in place of those that several owners had: of numbers the largest, and of tensors each largest element.

    What tables count beside their rows are upper bounds, such as the sightings of ids in a counting filter.
    """
    first = values[0]
    if all(same(first, each) for each in values[1:]):
        return first
    if all(isinstance(each, dict) and each.keys() == first.keys() for each in values):
        return {key: merged([each[key] for each in values]) for key in first}
    if all(isinstance(each, torch.Tensor) and each.shape == first.shape for each in values):
        return reduce(torch.maximum, values)
    if all(isinstance(each, int | float) for each in values):
        return max(values)
    raise CheckpointError("the owners of a table keep what cannot be put together; restore into as many owners")


def different_moments(told: str) -> CheckpointError:
    """The error about checkpoints that do not belong together."""
    return CheckpointError(
        f"these checkpoints are of different moments: {told}. Give those that all owners have written when they were "
        "stopped together"
    )
