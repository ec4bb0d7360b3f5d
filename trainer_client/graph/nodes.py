"""The nodes of recorded calls in torch's autograd graph; see `trainer_client.graph.recorder`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.errors import ContextEndedError

if TYPE_CHECKING:
    from trainer_client.graph.way_back import Gradient, WayBack

ROOT: Final = torch.empty(0, requires_grad=True)
"""The input of calls without inputs that require grad, so that their outputs have a history."""


class SendRpc(torch.autograd.Function):
    """The node from the inputs of a call to its token. Its backward waits for the owner's reply."""

    @staticmethod
    def forward(ctx: Any, call: WayBack, inputs: int, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.call = call
        ctx.tokens = len(tensors) - inputs
        ctx.set_materialize_grads(False)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor | None) -> Any:
        call: WayBack = ctx.call
        gradients = call.take_input_gradients()
        placed = [g if g is None else g.to(device) for g, device in zip(gradients, call.devices, strict=True)]
        return (None, None, *placed, *[torch.empty(0)] * ctx.tokens)


class RecvRpc(torch.autograd.Function):
    """The node from the token of a call to its outputs. Its backward hands their gradients over, to be sent."""

    @staticmethod
    def forward(
        ctx: Any,
        token: torch.Tensor,
        call: WayBack,
        outputs: Sequence[torch.Tensor],
        positions: Sequence[int],
    ) -> Any:
        ctx.call = call
        ctx.positions = positions
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        call: WayBack = ctx.call
        if call.context.ended:
            raise ContextEndedError(f"context {call.context.id} has ended; call backward inside its block")
        call.answer, call.held, call.left = None, False, False
        positions: list[int] = []
        used: list[torch.Tensor] = []
        for place, gradient in zip(ctx.positions, gradients, strict=False):
            if gradient is not None:
                positions.append(place)
                used.append(gradient)
        kept = len(gradients) > len(ctx.positions)
        current = call.context.current_backward
        if current is not None:
            sent: Sequence[Gradient] = used
            if call.encode is not None:
                sent = [call.encode(*each) for each in zip(positions, used, strict=True)]
            current.add(call, positions, sent, kept)
        elif used or kept:
            raise RuntimeError(
                "loss.backward() does not reach the owners that have computed a part of this loss: call "
                "ctx.backward(loss) instead. If that was called, ctx is another pass than that of this part: what "
                "prefetch() has looked up belongs to `async with looked_up.context as ctx`, in place of ps.context(). "
                "If a call to this process itself got that part as an RRef, pass it the tensor itself"
            )
        # Without inputs the token leads to the root, at which no gradient is accumulated.
        return (torch.empty(0) if call.leads_on else None), None, None, None


send: Final[Any] = SendRpc.apply
"""Makes the node of a call's inputs; returns the token."""

receive: Final[Any] = RecvRpc.apply
"""Makes the node of a call's outputs; returns the outputs with their history."""


RECEIVING: Final[Any] = RecvRpc._backward_cls
"""The class of `Receive` nodes in the graph; each has its `WayBack` as `call`."""

SENDING: Final[Any] = SendRpc._backward_cls
"""The class of `Send` nodes in the graph; each has its `WayBack` as `call`."""
