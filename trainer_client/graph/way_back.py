"""What the two nodes of a recorded call share in a backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from ps_wire.compression.encoded import Encoded

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
    """A backward that is running; see `RunningBackward` and `LocalBackward`."""

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

    @property
    def current_backward(self) -> Backward | None:
        """The backward that is running, if this is its thread."""


class WayBack:
    """The state that the two nodes of a call share in a backward.

    It must not refer to the nodes: that would be a reference cycle, which keeps the graph before them alive.

    Attributes:
        place: The numbers of the calls that it is nested in, and its own.
        latency: How long the backwards of such calls take on the owner; None if that is not known.
        together: Whether its backward is short enough to go in one request with those of other calls.
        input_bytes: Bytes of the inputs that require grad.
        leads_on: Whether it has inputs, or arguments that stay on an owner, through which a backward goes on.
        waits: Whether the backward goes on only when the owner has answered. It need not wait if all such arguments
            are results that stay on the same owner, and their calls may go in one request.
        encode: Encodes the gradients of outputs; None to send them as they are.
        held: Whether its gradients are in a request that was not sent yet.
        left: Whether torch's engine goes on meanwhile, because nothing here needs the answer.
        answer: The `Answer` to that request, and the position of the call in it.
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
        gradients: Sequence[list[torch.Tensor | None]] = post.wait().gradients
        if current is not None:
            # The end of the backward need not wait for it again.
            current.posts.pop(post, None)
        return gradients[index] if gradients else []
