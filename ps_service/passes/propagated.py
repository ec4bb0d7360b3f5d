"""The gradients that the backward of a recorded call computes, and those that later calls computed for its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ps_service.memory.held import Share
    from ps_service.passes.gradients import Gradient
    from ps_wire.refs import CallKey


class KeptInput(NamedTuple):
    """An input of a recorded call that is the result of an earlier call and stayed on this owner.

    Attributes:
        call: The earlier call.
        position: Position of the tensor among that call's outputs.
    """

    call: CallKey
    position: int


class Gathered(NamedTuple):
    """A gradient of an output that stayed on this owner, computed by the backward of a later call.

    Attributes:
        place: The place of that call in the pass.
        tensor: The gradient.
        shares: Count its bytes.
    """

    place: tuple[int, ...]
    tensor: torch.Tensor
    shares: Sequence[Share] = ()


class Propagated(NamedTuple):
    """The gradients that the backward of a call computed.

    Attributes:
        of_inputs: The gradients of the caller's inputs that need one.
        of_parameters: The gradients of parameters.
        of_kept: The gradients of inputs that are results of earlier calls and stayed on this owner.
    """

    of_inputs: list[torch.Tensor | None]
    of_parameters: list[Gradient]
    of_kept: list[tuple[KeptInput, torch.Tensor]]
