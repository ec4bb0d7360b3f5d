"""Records remote calls in torch's autograd graph.

A recorded call is a pair of nodes joined by an empty token tensor. `Send` has the call's inputs and outputs the token;
`Receive` has the token as input and outputs the results. In the backward, `Receive` posts the gradients of the outputs
to the owner and returns at once; `Send` waits for the owner's reply and returns the gradients of the inputs to torch.

Of all nodes that are ready, torch's engine runs the one with the highest sequence number. `Receive` gets a very high
number and `Send` a very low one, so the engine posts everything that can be posted, and computes everything local,
before it waits: the backwards of independent branches run concurrently. Among `Send` nodes the latest call comes first,
so that the gradients of a tensor that several calls used are added in torch's own order.

Tokens are on the CPU, whatever torch's default device is: each thread has its own, and the nodes run in several.

Profiles of a backward show the nodes by the names of their classes, which are those in torch's own rpc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import torch

from trainer_client.graph.nodes import RECEIVING, ROOT, Pass, WayBack, receive, send

if TYPE_CHECKING:
    from ps_wire.numerics.seeds import Seeds
    from ps_wire.runtime.failures import PassFailures
    from ps_wire.runtime.latency import Latency
    from trainer_client.session.session import Session

_FIRST: Final = 1 << 62
"""Added to the sequence numbers of `Receive` nodes; no thread makes as many nodes as this."""

Reserved = tuple[int, tuple[int, ...]]
"""The number and the place of a call in its pass."""


class RecordingPass(Pass, Protocol):
    """A pass that records calls; see `Context`."""

    finished: bool
    failures: PassFailures
    seeds: Seeds | None
    root: torch.Tensor

    def check(self, *sessions: Session) -> None:
        """Checks that the pass is open and that these sessions may take part in it."""

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


class RecordedCall(NamedTuple):
    """One remote call of a pass, with the token between its two nodes; the root, if it has no inputs."""

    call: WayBack
    token: torch.Tensor

    def receive(
        self, outputs: Sequence[torch.Tensor], positions: Sequence[int], kept: int = 0
    ) -> tuple[torch.Tensor, ...]:
        """Gives outputs, at these positions of the result, their history; and a token to each that is kept there."""
        if kept:
            outputs = [*outputs, *(torch.empty(0, device="cpu") for _ in range(kept))]
        received: tuple[torch.Tensor, ...]
        if torch.is_grad_enabled():
            received = receive(self.token, self.call, outputs, positions)
        else:
            # Grad mode counted when the call was made, not when its result is read.
            with torch.enable_grad():
                received = receive(self.token, self.call, outputs, positions)
        if received:
            # Results are read in any order; torch would number the nodes in that order.
            node: Any = received[0].grad_fn
            node._set_sequence_nr(_FIRST + self.call.place[-1])
        return received


def token_of(
    call: WayBack, root: torch.Tensor, inputs: Sequence[torch.Tensor], tokens: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Makes the node of a call's inputs, and of arguments that stay on an owner and were computed in the pass."""
    call.leads_on = True
    if not inputs and call.together:
        call.waits = not all(_stays(token, call.session) for token in tokens)
    if root is not ROOT:
        # A nested pass asks for the gradients of some leaves only, so every call has to lead to one of them.
        tokens = (*tokens, root)
    token: torch.Tensor = send(call, len(inputs), *inputs, *tokens)
    node: Any = token.grad_fn
    node._set_sequence_nr(call.place[-1])
    return token


def _stays(token: torch.Tensor, session: Session) -> bool:
    """Whether a token is that of a result of such a session's owner that stays there, and has a short backward."""
    node: Any = token.grad_fn
    return isinstance(node, RECEIVING) and node.call.session is session and node.call.together
