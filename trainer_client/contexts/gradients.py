"""The gradients of one pass, of this process and of all owners that take part in it, and how they are clipped."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ps_wire.codec.values import Decoder
from ps_wire.refs import Ref
from ps_wire.runtime.nothing import nothing
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.operations_pb2 import ContextId, GradientsRequest, NormRequest, ScaleRequest
from trainer_client.graph.walk import reservations

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from contextlib import AbstractContextManager

    from ps_wire.codec.payload import PayloadReader
    from trainer_client.handles.parameters import RemoteParameter
    from trainer_client.session.session import Session

    Bare = Callable[[Session, Ref, torch.Tensor], RemoteParameter]
    Reach = Callable[[str], Awaitable[Session]]


_SMALL = 1e-6
"""Torch adds this to the norm before it divides; added here, too, so that results are equal."""


class LocalGradients:
    """Adds up the gradients that a pass has for local leaves. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By the leaf's id(); the leaf is kept, so that no other object gets the same id().
        self._held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, found: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Adds gradients of leaves to those that are there."""
        with self._lock:
            for leaf, grad in found:
                if grad._is_view():
                    # A view of a bucket of DistributedDataParallel, which overwrites it in the next backward.
                    grad = grad.clone()
                held = self._held.get(id(leaf))
                self._held[id(leaf)] = (leaf, grad if held is None else _sum(held[1], grad))

    def of(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """The gradient of a leaf, if it has one."""
        held = self._held.get(id(leaf))
        return None if held is None else held[1]

    def items(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The leaves that have a gradient, and their gradients."""
        with self._lock:
            return list(self._held.values())

    def scale(self, leaves: Iterable[torch.Tensor], factor: float) -> None:
        """Multiplies the gradients of leaves."""
        with self._lock:
            for leaf in leaves:
                held = self._held.get(id(leaf))
                if held is not None:
                    self._held[id(leaf)] = (leaf, held[1] * factor)

    def drop(self, leaves: Iterable[torch.Tensor]) -> None:
        """Drops the gradients of leaves."""
        with self._lock:
            for leaf in leaves:
                self._held.pop(id(leaf), None)

    def clear(self) -> None:
        """Drops all gradients."""
        self._held.clear()

    def reserved(self, leaves: Sequence[torch.Tensor]) -> AbstractContextManager[None]:
        """Lets a block use the `.grad` of leaves; waits first until other code of this process does not."""
        return reservations.of(leaves)

    def take_now(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Like `reserved`, for a block of `reservations.freed`; says whether that was possible without a wait."""
        return reservations.take_now(leaves)


def _sum(held: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    # Torch adds a sparse tensor to a dense one, but not the other way round.
    return more + held if held.is_sparse and not more.is_sparse else held + more


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
