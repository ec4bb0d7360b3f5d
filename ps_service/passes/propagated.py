"""What the backward of a recorded call finds, and what the backwards of later calls have left for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ps_service.memory.held import Share
    from ps_service.passes.gradients import Gradient
    from ps_wire.refs import CallKey


class KeptInput(NamedTuple):
    """An input of a recorded call that an earlier call of the pass had left here.

    Attributes:
        call: The earlier call.
        position: Place of the tensor among that call's outputs.
    """

    call: CallKey
    position: int


class Gathered(NamedTuple):
    """A gradient of an output that was kept here, found by the backward of a later call.

    Attributes:
        place: The place of that call in the pass.
        tensor: The gradient.
        shares: Let its bytes count.
    """

    place: tuple[int, ...]
    tensor: torch.Tensor
    shares: Sequence[Share] = ()


class Propagated(NamedTuple):
    """What the backward of a call found.

    Attributes:
        of_inputs: The gradients of the caller's inputs that want one.
        of_parameters: Those of parameters.
        of_kept: Those of inputs that earlier calls had left here.
    """

    of_inputs: list[torch.Tensor | None]
    of_parameters: list[Gradient]
    of_kept: list[tuple[KeptInput, torch.Tensor]]
