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

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.graph.nodes import ROOT, receive, send
from trainer_client.numerics import write_numerics

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context
    from trainer_client.graph.running_backward import LocalBackward, RunningBackward
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

_FIRST: Final = 1 << 62
"""Added to the sequence numbers of `Receive` nodes; no thread makes as many nodes as this."""


class RecordedCall:
    """One remote call of a pass.

    Args:
        context: The pass.
        session: The session with the owner that runs the call.
        number: Its number in the pass.
        place: The numbers of the calls that it is nested in, and its own number among the calls of the innermost one.
        inputs: Its tensor arguments that require grad.
        tokens: Tokens of the arguments that stay on an owner and were computed in this pass.

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
    ) -> None:
        self.context = context.id
        self.number = number
        self.place = place
        self._way_back = WayBack(context, session, number, place, [tensor.device for tensor in inputs])
        self._token = context.root
        if inputs or tokens:
            if context.root is not ROOT:
                # A nested pass asks for the gradients of some leaves only, so every call has to lead to one of them.
                tokens = (*tokens, context.root)
            self._way_back.leads_on = True
            self._token = send(self._way_back, len(inputs), *inputs, *tokens)
            node: Any = self._token.grad_fn
            node._set_sequence_nr(place[-1])

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


class WayBack:
    """The state that the two nodes of a call share in a backward.

    It must not refer to the nodes: that would be a reference cycle, which keeps the graph before them alive.
    """

    def __init__(
        self,
        context: Context,
        session: Session,
        number: int,
        place: tuple[int, ...],
        devices: Sequence[torch.device],
    ) -> None:
        self.context = context
        self.number = number
        self.session = session
        self.devices = devices
        self.leads_on = False
        self._place = place
        self.answer: Pending[list[torch.Tensor | None]] | None = None

    def post(
        self,
        current: RunningBackward | LocalBackward,
        after: int | None,
        positions: Sequence[int],
        gradients: Sequence[torch.Tensor],
    ) -> Pending[list[torch.Tensor | None]]:
        """Sends gradients of outputs to the owner.

        Args:
            current: The backward that is running.
            after: Number of the call whose gradients the owner adds just before; None if it is not known.
            positions: Positions of the outputs that have a gradient.
            gradients: As many gradients.
        """
        frame = Frame()
        request = frame.request.backward
        request.context.CopyFrom(self.context.message)
        request.call = self.number
        request.outputs.extend(positions)
        request.retain_graph = current.retain_graph
        request.backward = current.number
        if after is not None:
            request.after = after
        write_numerics(request)
        if len(self._place) > 1:
            request.place.extend(self._place)
        payload = PayloadWriter()
        Encoder(payload).encode_into(request.gradients, gradients)
        self.answer = self.session.submit(frame, payload, _input_gradients if self.devices else _no_gradients)
        return self.answer

    def take_input_gradients(self) -> list[torch.Tensor | None]:
        """Waits for the gradients of the inputs; an empty list if this backward has posted none for the call."""
        post, self.answer = self.answer, None
        if post is None:
            return [None] * len(self.devices)
        gradients = post.wait()
        current = self.context.current_backward
        if current is not None:
            # The end of the backward need not wait for it again.
            current.posts.pop(post, None)
        return gradients


def _no_gradients(reply: Reply, payload: PayloadReader) -> list[torch.Tensor | None]:
    """Reads the reply for a call without inputs that require grad."""
    return []


def _input_gradients(reply: Reply, payload: PayloadReader) -> list[torch.Tensor | None]:
    gradients: list[torch.Tensor | None] = Decoder(payload).decode(reply.backward.gradients)
    return gradients
