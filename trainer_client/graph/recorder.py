"""Records remote calls in torch's autograd graph.

A recorded call is a pair of nodes joined by an empty token tensor. `Send` has the call's inputs and outputs the token;
`Receive` has the token as input and outputs the results. In the backward, `Receive` posts the gradients of the outputs
to the owner and returns at once; `Send` waits for the owner's reply and returns the gradients of the inputs to torch.

Of all nodes that are ready, torch's engine runs the one with the highest sequence number. `Receive` gets a very high
number and `Send` a very low one, so the engine posts everything that can be posted, and computes everything local,
before it waits: the backwards of independent branches run concurrently. Among `Send` nodes the latest call comes first,
so that the gradients of a tensor that several calls used are added in torch's own order.

Profiles of a backward show the nodes by the names of their classes, which are those in torch's own rpc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from ps_wire.errors import ContextEndedError
from trainer_client.graph.way_back import Pass, WayBack

if TYPE_CHECKING:
    from ps_wire.numerics.seeds import Seeds
    from ps_wire.runtime.failures import PassFailures
    from ps_wire.runtime.latency import Latency
    from trainer_client.graph.way_back import Encode, Gradient
    from trainer_client.session.session import Session

ROOT: Final = torch.empty(0, requires_grad=True)
"""The input of calls without inputs that require grad, so that their outputs have a history."""

_FIRST: Final = 1 << 62
"""Added to the sequence numbers of `Receive` nodes; no thread makes as many nodes as this."""

Reserved = tuple[int, tuple[int, ...]]
"""The number and the place of a call in its pass."""


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
        call.answer = call.batch = None
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


class RecordingPass(Pass, Protocol):
    """A pass that records calls; see `Context`."""

    finished: bool
    failures: PassFailures
    seeds: Seeds | None
    root: torch.Tensor

    def record(
        self,
        session: Session,
        inputs: Sequence[torch.Tensor],
        tokens: Sequence[torch.Tensor] = (),
        latency: Latency | None = None,
        reserved: Reserved | None = None,
    ) -> RecordedCall:
        """Records a call in the graph."""

    def reserve(self, session: Session) -> Reserved:
        """Reserves the number and place of a call that is recorded later."""


class RecordedCall:
    """One remote call of a pass.

    Args:
        context: The pass.
        session: The session with the owner that runs the call.
        number: Its number in the pass.
        place: The numbers of the calls that it is nested in, and its own number among the calls of the innermost one.
        inputs: Its tensor arguments that require grad.
        tokens: Tokens of the arguments that stay on an owner and were computed in this pass.
        latency: How long the backwards of such calls take on the owner; None if that is not known.

    Attributes:
        context: Id of the pass.
        number: Its number in the pass.
        place: As the argument.
    """

    def __init__(
        self,
        context: RecordingPass,
        session: Session,
        number: int,
        place: tuple[int, ...],
        inputs: Sequence[torch.Tensor],
        tokens: Sequence[torch.Tensor] = (),
        latency: Latency | None = None,
    ) -> None:
        self.context = context.id
        self.number = number
        self.place = place
        self._way_back = WayBack(context, session, number, place, inputs, latency)
        self._token = context.root
        if inputs or tokens:
            stay = tokens
            if context.root is not ROOT:
                # A nested pass asks for the gradients of some leaves only, so every call has to lead to one of them.
                tokens = (*tokens, context.root)
            self._way_back.leads_on = True
            if not inputs and self._way_back.together:
                self._way_back.waits = not all(_stays(token, session) for token in stay)
            self._token = send(self._way_back, len(inputs), *inputs, *tokens)
            node: Any = self._token.grad_fn
            node._set_sequence_nr(place[-1])

    def encode_gradients(self, encode: Encode) -> None:
        """Has the gradients of its outputs encoded before they are sent."""
        self._way_back.encode = encode

    def receive(
        self, outputs: Sequence[torch.Tensor], positions: Sequence[int], kept: int = 0
    ) -> tuple[torch.Tensor, ...]:
        """Gives the call's outputs their history.

        Args:
            outputs: The outputs that the owner can differentiate.
            positions: Their positions among all tensors of the result.
            kept: Number of results that stay on the owner; each gets a token.

        Returns:
            The outputs, and then the tokens.
        """
        if kept:
            outputs = [*outputs, *(torch.empty(0) for _ in range(kept))]
        received: tuple[torch.Tensor, ...]
        if torch.is_grad_enabled():
            received = receive(self._token, self._way_back, outputs, positions)
        else:
            # Grad mode counted when the call was made, not when its result is read.
            with torch.enable_grad():
                received = receive(self._token, self._way_back, outputs, positions)
        if received:
            # Results are read in any order; torch would number the nodes in that order.
            node: Any = received[0].grad_fn
            node._set_sequence_nr(_FIRST + self.place[-1])
        return received


def _stays(token: torch.Tensor, session: Session) -> bool:
    """Whether a token is that of a result of such a session's owner that stays there, and has a short backward."""
    node: Any = token.grad_fn
    return isinstance(node, RECEIVING) and node.call.session is session and node.call.together
