"""What stands for one parameter in one recorded call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from ps_wire.refs import Ref


class Leaf(NamedTuple):
    """What stood for a parameter in one recorded call.

    Attributes:
        ref: The parameter's handle, if it is one of a hosted module.
        parameter: The parameter.
        tensor: What stood for it.
        steps: How many steps it had had by then.
        holds: What must live for as long as the call's graph is of use.
    """

    ref: Ref | None
    parameter: torch.Tensor
    tensor: torch.Tensor
    steps: int = 0
    holds: list[Any] = []  # noqa: RUF012
