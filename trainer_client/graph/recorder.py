"""Recorder: writes remote calls into torch's autograd graph.

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
from ps_wire.errors import ContextEndedError
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.operations_pb2 import BackwardRequest
from trainer_client.numerics import write_numerics

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

ROOT: Final = torch.empty(0, requires_grad=True)
"""Stands for the inputs of calls that have none to differentiate, so that their outputs still have a history."""


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
            self._token = _Send.apply(self._way_back, len(inputs), *inputs, *tokens)  # type: ignore[no-untyped-call]
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
            received: tuple[torch.Tensor, ...] = _Receive.apply(  # type: ignore[no-untyped-call]
                self._token, self._way_back, [*outputs, *tokens], positions
            )
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
        self._post: Pending[list[torch.Tensor | None]] | None = None

    def post(self, positions: Sequence[int], gradients: Sequence[torch.Tensor], kept: bool) -> None:
        """Sends gradients of outputs to the owner, if there are any, or if it may have some of what it keeps."""
        self._post = None
        current = self.context.current_pass
        if not positions and not kept:
            if current is not None:
                current.skip(self.number)
            return
        if current is None:
            raise RuntimeError("a loss with remote parts is propagated with ctx.backward(loss), not loss.backward()")
        payload = PayloadWriter()
        request = BackwardRequest(
            context=self.context.message,
            call=self.number,
            outputs=positions,
            retain_graph=current.retain_graph,
            backward=current.number,
            after=current.after(self.number),
        )
        write_numerics(request)
        if len(self._place) > 1:
            request.place.extend(self._place)
        Encoder(payload).encode_into(request.gradients, list(gradients))
        self._post = self.session.submit(Request(backward=request), payload, _input_gradients)
        current.posts[self._post] = None

    def take_input_gradients(self) -> list[torch.Tensor | None]:
        """Waits for the gradients of the inputs; none at all if nothing was posted in this pass."""
        post, self._post = self._post, None
        if post is None:
            return [None] * len(self.devices)
        gradients = post.wait()
        current = self.context.current_pass
        if current is not None:
            # It need not be waited for again.
            current.posts.pop(post, None)
        return gradients


def _input_gradients(reply: Reply, payload: PayloadReader) -> list[torch.Tensor | None]:
    gradients: list[torch.Tensor | None] = Decoder(payload).decode(reply.backward.gradients)
    return gradients


class _Send(torch.autograd.Function):
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


class _Receive(torch.autograd.Function):
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
        used = [(place, g) for place, g in zip(ctx.positions, gradients, strict=False) if g is not None]
        kept = len(gradients) > len(ctx.positions)
        call.post([place for place, _ in used], [gradient for _, gradient in used], kept)
        # Nothing is to be accumulated at the root of calls that have no inputs.
        return (torch.empty(0) if call.leads_on else None), None, None, None


def _receiving() -> Any:
    """The class of the nodes that lead back to recorded calls; torch gives it no public name."""
    (output,) = _Receive.apply(ROOT, None, [torch.empty(0)], [])  # type: ignore[no-untyped-call]
    return type(output.grad_fn)


RECEIVING: Final = _receiving()
"""The class of the nodes that lead back to recorded calls; each has the call as `call`."""
