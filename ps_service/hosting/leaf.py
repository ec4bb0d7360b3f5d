"""The leaf that replaces one parameter in a recorded call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from ps_wire.refs import Ref


class Leaf(NamedTuple):
    """The leaf of a parameter in a recorded call.

    Attributes:
        ref: The parameter's handle; None if it does not belong to a hosted module.
        parameter: The parameter.
        tensor: The leaf.
        holds: Objects that must live as long as the call's graph is used.
        is_shared: Whether other calls have the same leaf.
    """

    ref: Ref | None
    parameter: torch.Tensor
    tensor: torch.Tensor
    holds: list[Any] = []  # noqa: RUF012
    is_shared: bool = False
