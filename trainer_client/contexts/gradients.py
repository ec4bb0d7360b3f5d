"""The gradients of one pass, of this process and of all owners that take part in it, and how they are clipped."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.codec.values import Decoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import Ref
from ps_wire.runtime.noop import noop
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.operations_pb2 import ContextId, GradientsRequest, NormRequest, ScaleRequest

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader
    from trainer_client.graph.leaves import LocalGradients
    from trainer_client.handles.parameters import RemoteParameter
    from trainer_client.session.session import Session

    Bare = Callable[[Session, Ref, torch.Tensor], RemoteParameter]
    Reach = Callable[[str], Awaitable[Session]]

_SMALL = 1e-6
"""Torch adds this to the norm before it divides; added here, too, so that results are equal."""

_NUMBERS: Final[Any] = (Real, torch.Tensor)
"""What a norm may be: a number, also of numpy, or a tensor with one."""


async def gradients(
    context: ContextId, local: LocalGradients, sessions: Mapping[str, Session], reach: Reach | None, bare: Bare
) -> dict[RemoteParameter | torch.Tensor, torch.Tensor]:
    """The gradients of a context, by handle or tensor. Owners that only owners have called are reached, too."""
    found: dict[RemoteParameter | torch.Tensor, torch.Tensor] = dict(local.items())
    request = Request(gradients=GradientsRequest(context=context))
    asked: set[str] = set()
    asking = list(sessions.values())
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


def check_norms(max_norm: Any, norm_type: Any) -> None:
    """Raises `InvalidArgumentError` if the norm to clip to, or its exponent, is no positive number."""
    if not all(isinstance(each, _NUMBERS) and each > 0 for each in (max_norm, norm_type)):
        raise InvalidArgumentError(f"max_norm and norm_type must be positive, not {max_norm!r} and {norm_type!r}")


async def clip(
    context: ContextId,
    gradients: LocalGradients,
    parameters: Sequence[RemoteParameter | torch.Tensor],
    max_norm: float,
    norm_type: float,
    sessions: Mapping[str, Session],
) -> torch.Tensor:
    """Scales a context's gradients so that their common norm is at most `max_norm`; returns the norm before. The
    sessions are those with the owners that take part in the pass."""
    local = [each for each in parameters if isinstance(each, torch.Tensor)]
    remote: dict[Session, list[Any]] = {}
    for each in parameters:
        if not isinstance(each, torch.Tensor):
            remote.setdefault(each.session, []).append(each.ref.to_message())
    # One of them may have lost the pass before objects left it, and the owner that has these now would not say so.
    left = {session: list[Any]() for session in list(sessions.values()) if session.moved}
    powers = await _ask(
        left | remote,
        lambda handles: Request(norm=NormRequest(context=context, parameters=handles, norm_type=norm_type)),
        lambda reply, _: float(reply.norm.power_sum),
    )
    own = [float(torch.linalg.vector_norm(g, norm_type)) for g in map(gradients.of, local) if g is not None]
    if math.isinf(norm_type):
        # Of torch, for which NaN is the largest; for Python it depends on the order.
        total = float(torch.tensor([0.0, *powers, *own], dtype=torch.float64, device="cpu").max())
    else:
        try:
            total = (sum(powers) + sum(norm**norm_type for norm in own)) ** (1 / norm_type)
        except OverflowError:
            total = math.inf
    factor = max_norm / (total + _SMALL)
    # A norm that is NaN scales, too, as in torch, so that the gradients show it.
    if not factor >= 1.0:
        gradients.scale(local, factor)
        await _ask(
            remote,
            lambda handles: Request(scale=ScaleRequest(context=context, parameters=handles, factor=factor)),
            noop,
        )
    return torch.tensor(total, device="cpu")


async def _ask(
    remote: dict[Session, list[Any]],
    request: Callable[[list[Any]], Request],
    finish: Callable[[Reply, PayloadReader], Any],
) -> list[Any]:
    pending = [session.submit(request(handles), None, finish) for session, handles in remote.items()]
    return [await each for each in pending]
