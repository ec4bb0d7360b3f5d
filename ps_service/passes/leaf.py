"""The leaf that replaces one parameter in one recorded call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from ps_wire.refs import Ref


class Leaf(NamedTuple):
    """The leaf of a parameter in one recorded call.

    Attributes:
        ref: The parameter's handle; None if it does not belong to a hosted module.
        parameter: The parameter.
        tensor: The leaf.
        steps: Number of steps of the parameter when the call read it.
        holds: Objects that must live as long as the call's graph is used.
    """

    ref: Ref | None
    parameter: torch.Tensor
    tensor: torch.Tensor
    steps: int = 0
    holds: list[Any] = []  # noqa: RUF012
