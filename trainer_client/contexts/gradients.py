"""Reads the gradients of a context from all owners that take part in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ps_wire.codec.values import Decoder
from ps_wire.refs import Ref
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.operations_pb2 import GradientsRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import torch

    from ps_wire.codec.payload import PayloadReader
    from ps_wire.v1.operations_pb2 import ContextId
    from trainer_client.handles.parameters import RemoteParameter
    from trainer_client.session.session import Session

    Bare = Callable[[Session, Ref, torch.Tensor], RemoteParameter]
    Reach = Callable[[str], Awaitable[Session]]


class PassOfOwners(Protocol):
    """A pass that has gradients on owners and here; see `Context`."""

    message: ContextId

    @property
    def sessions(self) -> list[Session]:
        """The sessions with the owners that take part so far."""

    def local_gradients(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The local leaves that have a gradient in this pass, and their gradients."""


async def gradients(
    context: PassOfOwners, reach: Reach | None, bare: Bare
) -> dict[RemoteParameter | torch.Tensor, torch.Tensor]:
    """The gradients of a context, by handle for remote parameters and by tensor for local ones.

    Args:
        context: The pass.
        reach: Opens the session with an owner that took part through another owner; None if there is no such owner.
        bare: Makes a handle from a session, a reference and the gradient.
    """
    found: dict[RemoteParameter | torch.Tensor, torch.Tensor] = dict(context.local_gradients())
    request = Request(gradients=GradientsRequest(context=context.message))
    asked: set[str] = set()
    asking = context.sessions
    while asking:
        asked.update(session.owner for session in asking)
        others: set[str] = set()
        replies = [session.submit(request, None, _read) for session in asking]
        for session, reply in zip(asking, replies, strict=True):
            remote, called = await reply
            others.update(called)
            for ref, gradient in remote:
                found[bare(session, ref, gradient)] = gradient
        # Owners that the called owners have called.
        asking = [await reach(name) for name in sorted(others - asked)] if reach is not None else []
    return found


def _read(reply: Reply, payload: PayloadReader) -> tuple[list[tuple[Ref, torch.Tensor]], list[str]]:
    tensors = Decoder(payload).decode(reply.gradients.gradients)
    refs = map(Ref.from_message, reply.gradients.parameters)
    return list(zip(refs, tensors, strict=True)), list(reply.gradients.others)
