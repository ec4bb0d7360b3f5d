"""Records remote calls in torch's autograd graph.

A recorded call is a pair of nodes joined by an empty token tensor. `Send` takes the call's inputs and gives the token;
`Receive` takes the token and gives the call's outputs. On the way back `Receive` posts the gradients of the outputs to
the owner and returns at once; `Send` waits for the owner's reply and hands the gradients of the inputs to torch.

Torch's engine runs whatever is ready with the highest sequence number first. `Receive` gets a very high number and
`Send` a very low one, so the engine posts everything that can be posted, and computes everything local, before it waits
for anything: branches that do not depend on each other run their backward together. Among those that wait the latest
call comes first, so that gradients of what several calls used are added in torch's own order.
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
    from trainer_client.graph.passes import LocalPass, Pass
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

_FIRST: Final = 1 << 62
"""Added to the sequence numbers of `Receive` nodes: more nodes than that no thread makes."""


class RecordedCall:
    """One remote call of a pass.

    Args:
        context: The pass.
        session: Where the call runs.
        number: Its number in the pass.
        place: The same after the numbers of the calls in which it is nested, where it counts from one.
        inputs: Its tensor arguments that require grad.
        tokens: Stand for arguments that are kept on an owner and have a history there.

    Attributes:
        context: Name of the pass.
        number: Its number in the pass.
        place: The same after the numbers of the calls in which it is nested.
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
                # Where only some leaves are asked for, every call has to lead to one of them.
                tokens = (*tokens, context.root)
            self._way_back.leads_on = True
            self._token = send(self._way_back, len(inputs), *inputs, *tokens)
            node: Any = self._token.grad_fn
            node._set_sequence_nr(place[-1])

    def receive(
        self, outputs: Sequence[torch.Tensor], positions: Sequence[int], kept: int = 0
    ) -> tuple[torch.Tensor, ...]:
        """The call's outputs with their history.

        Args:
            outputs: Those that the owner can differentiate.
            positions: Their places among all tensors of the result.
            kept: For how many results that stay on an owner a token is wanted.

        Returns:
            The outputs, and then the tokens.
        """
        # Whether to record was decided when the call was made, not now that its answer is taken.
        with torch.enable_grad():
            tokens = [torch.empty(0) for _ in range(kept)]
            received: tuple[torch.Tensor, ...] = receive(self._token, self._way_back, [*outputs, *tokens], positions)
        if received:
            # Answers are taken in any order, and torch would number them in that.
            node: Any = received[0].grad_fn
            node._set_sequence_nr(_FIRST + self.place[-1])
        return received


class WayBack:
    """What the two nodes of a call share while gradients travel back.

    It must not lead to the nodes themselves: they would keep each other, and all that was computed before them, alive.
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
        current: Pass | LocalPass,
        after: int | None,
        positions: Sequence[int],
        gradients: Sequence[torch.Tensor],
    ) -> Pending[list[torch.Tensor | None]]:
        """Sends gradients of outputs to the owner.

        Args:
            current: The backward that is running.
            after: The call after whose gradients the owner adds those of this one; None if that is not known.
            positions: Places of the outputs that have a gradient.
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
        """Waits for the gradients of the inputs; none at all if nothing was posted in this pass."""
        post, self.answer = self.answer, None
        if post is None:
            return [None] * len(self.devices)
        gradients = post.wait()
        current = self.context.current_pass
        if current is not None:
            # It need not be waited for again.
            current.posts.pop(post, None)
        return gradients


def _no_gradients(reply: Reply, payload: PayloadReader) -> list[torch.Tensor | None]:
    """Reads the reply to a call that has no inputs to differentiate."""
    return []


def _input_gradients(reply: Reply, payload: PayloadReader) -> list[torch.Tensor | None]:
    gradients: list[torch.Tensor | None] = Decoder(payload).decode(reply.backward.gradients)
    return gradients
