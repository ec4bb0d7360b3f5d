"""The nodes of recorded calls in torch's autograd graph, and what they share; see `trainer_client.graph.recorder`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from ps_wire.compression.codec import Encoded
from ps_wire.errors import ContextEndedError

if TYPE_CHECKING:
    from ps_wire.refs import ContextId
    from ps_wire.runtime.latency import Latency
    from ps_wire.v1.operations_pb2 import ContextId as ContextMessage
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

Gradient = torch.Tensor | Encoded
"""A gradient of an output, as it is sent."""

Encode = Callable[[int, torch.Tensor], Gradient]
"""Encodes the gradient of the output at a position."""

TOGETHER_SECONDS: Final = 2e-3
"""Backwards that take longer on the owner have requests of their own, so that they run concurrently there."""


class Backward(Protocol):
    """A backward that is running; see `LocalBackward` and `RunningBackward`."""

    posts: dict[Pending[Any], None]

    def add(self, call: WayBack, positions: Sequence[int], gradients: Sequence[Gradient], kept: bool) -> None:
        """Takes the gradients of a call's outputs."""

    def must_wait(self, call: WayBack) -> bool:
        """Whether torch's engine has to wait for the answer of a call."""


class Pass(Protocol):
    """A pass whose calls are in the graph; see `Context`."""

    id: ContextId
    message: ContextMessage
    ended: bool

    def join(self, session: Session) -> None:
        """An owner takes part in the pass."""

    @property
    def current_backward(self) -> Backward | None:
        """The backward that is running, if this is its thread."""


class WayBack:
    """The state that the two nodes of a call share in a backward.

    It must not refer to the nodes: that would be a reference cycle, which keeps the graph before them alive.

    It goes `together` with those of other calls in one request if its backward is short on the owner, as the
    latency tells if that is known. It `leads_on` if it has inputs that require grad, or arguments that stay on an
    owner, through which a backward goes on; and it `waits` if that goes on only when the owner has answered. It
    need not wait if all such arguments are results that stay on the same owner, and their calls may go in one
    request.

    Its gradients are `held` until their request is sent. If torch's engine goes on meanwhile, because nothing here
    needs the answer, the call is `left`; otherwise `answer` is the `Answer` to the request, and the call's position
    in it.
    """

    def __init__(
        self,
        context: Pass,
        session: Session,
        number: int,
        place: tuple[int, ...],
        inputs: Sequence[torch.Tensor],
        latency: Latency | None = None,
    ) -> None:
        self.context = context
        self.number = number
        self.session = session
        self.place = place
        self.devices: Sequence[torch.device] = ()
        self.input_bytes = 0
        if inputs:
            self.devices = [tensor.device for tensor in inputs]
            self.input_bytes = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
        self.latency = latency
        self.together = latency is not None and latency.seconds < TOGETHER_SECONDS
        self.leads_on = self.held = self.left = False
        self.waits = True
        self.encode: Encode | None = None
        self.answer: tuple[Pending[Any], int] | None = None

    def join(self, session: Session) -> None:
        """The call is made on another owner, because its object has moved there."""
        self.session, self.latency, self.together, self.waits = session, None, False, True
        self.context.join(session)

    def take_input_gradients(self) -> list[torch.Tensor | None]:
        """Waits for the gradients of the inputs; an empty list if there are no inputs."""
        current = self.context.current_backward
        if current is not None and not current.must_wait(self):
            return []
        answer, self.answer = self.answer, None
        if answer is None:
            if current is None and self.held:
                raise RuntimeError(
                    "torch's engine has gone on from a remote call in another thread than that of the backward: the "
                    "inputs of the call would get no gradients"
                )
            # This backward has sent no gradients for the call.
            return [None] * len(self.devices)
        post, index = answer
        gradients: Sequence[list[torch.Tensor | None]] = post.wait().gradients
        if current is not None:
            # The end of the backward need not wait for it again.
            current.posts.pop(post, None)
        return gradients[index] if gradients else []


ROOT: Final = torch.empty(0, device="cpu", requires_grad=True)
"""The input of calls without inputs that require grad, so that their outputs have a history."""


class SendRpc(torch.autograd.Function):
    """The node from the inputs of a call to its token. Its backward waits for the owner's reply."""

    @staticmethod
    def forward(ctx: Any, call: WayBack, inputs: int, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.call = call
        ctx.tokens = len(tensors) - inputs
        ctx.set_materialize_grads(False)
        return torch.empty(0, device="cpu")

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor | None) -> Any:
        call: WayBack = ctx.call
        gradients = call.take_input_gradients()
        placed = [g if g is None else g.to(device) for g, device in zip(gradients, call.devices, strict=True)]
        return (None, None, *placed, *[torch.empty(0, device="cpu")] * ctx.tokens)


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
        return (torch.empty(0, device="cpu") if call.leads_on else None), None, None, None


send: Final[Any] = SendRpc.apply
"""Makes the node of a call's inputs; returns the token."""

receive: Final[Any] = RecvRpc.apply
"""Makes the node of a call's outputs; returns the outputs with their history."""


RECEIVING: Final[Any] = RecvRpc._backward_cls
"""The class of `Receive` nodes in the graph; each has its `WayBack` as `call`."""

SENDING: Final[Any] = SendRpc._backward_cls
"""The class of `Send` nodes in the graph; each has its `WayBack` as `call`."""
