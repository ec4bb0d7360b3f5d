"""Clips the gradients of a context by their common norm over all owners and this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ps_wire.runtime.nothing import nothing
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.operations_pb2 import ContextId, NormRequest, ScaleRequest

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader
    from trainer_client.contexts.gradients import LocalGradients
    from trainer_client.handles.parameters import RemoteParameter
    from trainer_client.session.session import Session

_SMALL = 1e-6
"""Torch adds this to the norm before it divides; added here, too, so that results are equal."""


async def clip(
    context: ContextId,
    gradients: LocalGradients,
    parameters: Sequence[RemoteParameter | torch.Tensor],
    max_norm: float,
    norm_type: float,
) -> torch.Tensor:
    """Scales a context's gradients so that their common norm is at most `max_norm`; returns the norm before."""
    local = [each for each in parameters if isinstance(each, torch.Tensor)]
    remote: dict[Session, list[Any]] = {}
    for each in parameters:
        if not isinstance(each, torch.Tensor):
            remote.setdefault(each.session, []).append(each.ref.to_message())
    powers = await _ask(
        remote,
        lambda handles: Request(norm=NormRequest(context=context, parameters=handles, norm_type=norm_type)),
        lambda reply, _: float(reply.norm.power_sum),
    )
    own = [float(torch.linalg.vector_norm(g, norm_type)) for g in map(gradients.of, local) if g is not None]
    if math.isinf(norm_type):
        total = max((*powers, *own), default=0.0)
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
            nothing,
        )
    return torch.tensor(total)


async def _ask(
    remote: dict[Session, list[Any]],
    request: Callable[[list[Any]], Request],
    finish: Callable[[Reply, PayloadReader], Any],
) -> list[Any]:
    pending = [session.submit(request(handles), None, finish) for session, handles in remote.items()]
    return [await each for each in pending]
