"""Records remote calls in torch's autograd graph.

A recorded call is a pair of nodes joined by an empty token tensor. `Send` has the call's inputs and outputs the token;
`Receive` has the token as input and outputs the results. In the backward, `Receive` posts the gradients of the outputs
to the owner and returns at once; `Send` waits for the owner's reply and returns the gradients of the inputs to torch.

Of all nodes that are ready, torch's engine runs the one with the highest sequence number. `Receive` gets a very high
number and `Send` a very low one, so the engine posts everything that can be posted, and computes everything local,
before it waits: the backwards of independent branches run concurrently. Among `Send` nodes the latest call comes first,
so that the gradients of a tensor that several calls used are added in torch's own order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.compression.encoded import Encoded
from trainer_client.graph.nodes import RECEIVING, ROOT, receive, send

if TYPE_CHECKING:
    from ps_wire.runtime.latency import Latency
    from trainer_client.contexts.context import Context
    from trainer_client.graph.batch import Answer, Batch
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

_FIRST: Final = 1 << 62
"""Added to the sequence numbers of `Receive` nodes; no thread makes as many nodes as this."""


Gradient = torch.Tensor | Encoded
"""A gradient of an output, as it is sent."""

Encode = Callable[[int, torch.Tensor], Gradient]
"""Encodes the gradient of the output at a position."""

Reserved = tuple[int, tuple[int, ...]]
"""The number and the place of a call in its pass."""

TOGETHER_SECONDS: Final = 2e-3
"""Backwards that take longer on the owner have requests of their own, so that they run concurrently there."""


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
        context: Context,
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


class WayBack:
    """The state that the two nodes of a call share in a backward.

    It must not refer to the nodes: that would be a reference cycle, which keeps the graph before them alive.

    Args:
        context: The pass.
        session: The session with the owner that runs the call.
        number: Its number in the pass.
        place: The numbers of the calls that it is nested in, and its own.
        inputs: Its tensor arguments that require grad.
        latency: How long the backwards of such calls take on the owner; None if that is not known.

    Attributes:
        context: As the argument, like `session`, `number`, `place` and `latency`.
        together: Whether its backward is short enough to go in one request with those of other calls.
        devices: The devices of the inputs.
        input_bytes: Bytes of the inputs.
        leads_on: Whether it has inputs, or arguments that stay on an owner, through which a backward goes on.
        waits: Whether the backward goes on only when the owner has answered. It need not wait if all such arguments
            are results that stay on the same owner, and their calls may go in one request.
        encode: Encodes the gradients of outputs; None to send them as they are.
        batch: The request in which its gradients will be sent; None if no gradients are held.
        answer: The answer to that request, and the position of the call in it.
    """

    def __init__(
        self,
        context: Context,
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
        self.devices = [tensor.device for tensor in inputs]
        self.input_bytes = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
        self.latency = latency
        self.together = latency is not None and latency.seconds < TOGETHER_SECONDS
        self.leads_on = False
        self.waits = True
        self.encode: Encode | None = None
        self.batch: Batch | None = None
        self.answer: tuple[Pending[Answer], int] | None = None

    def take_input_gradients(self) -> list[torch.Tensor | None]:
        """Waits for the gradients of the inputs; an empty list if there are no inputs."""
        current = self.context.current_backward
        if current is not None and not current.must_wait(self):
            return []
        answer, self.answer = self.answer, None
        if answer is None:
            # This backward has sent no gradients for the call.
            return [None] * len(self.devices)
        post, index = answer
        gradients = post.wait().gradients
        if current is not None:
            # The end of the backward need not wait for it again.
            current.posts.pop(post, None)
        return gradients[index] if gradients else []
