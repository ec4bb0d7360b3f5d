"""Parts of optimizers and schedulers on owners that a test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import torch
from torch import optim

from ps_wire.refs import Ref
from ps_wire.v1.frames_pb2 import Frame, Reply
from tests.trainer_client.handles.answering import info_of, module
from tests.trainer_client.scripted_owner import Stream, encoded, opened
from trainer_client.handles.handles import handle_from
from trainer_client.handles.parameters import RemoteParameter
from trainer_client.optimizers.layout import split_groups
from trainer_client.optimizers.optimizer import DistributedOptimizer
from trainer_client.optimizers.parts import LocalOptimizer, RemoteOptimizer
from trainer_client.session.session import Session


class Place(NamedTuple):
    """An owner that a test plays, and a parameter there."""

    session: Session
    stream: Stream
    weight: RemoteParameter

    def part(self) -> RemoteOptimizer:
        """The part of an optimizer that is on this owner."""
        return RemoteOptimizer(handle_from(self.session, info_of("step", owner=self.session.owner)))


@asynccontextmanager
async def places() -> AsyncIterator[tuple[Place, Place]]:
    """Two owners."""
    async with opened() as (one, its_stream, _), opened(owner="ps1") as (other, other_stream, _):
        yield (
            Place(one, its_stream, module(one, "weight").parameter("weight")),
            Place(other, other_stream, module(other, "weight").parameter("weight")),
        )


def optimizer_on(
    *places: Place, local: torch.Tensor | None = None, refuses: bool = False, lr: float = 0.5
) -> DistributedOptimizer:
    """An SGD optimizer over the parameters of some owners, and a local one."""
    parameters: list[Any] = [place.weight for place in places]
    layout, _, groups = split_groups([*parameters, local] if local is not None else parameters)
    here = LocalOptimizer(optim.SGD, groups, {"lr": lr}, refuses) if local is not None else None
    return DistributedOptimizer({place.session.owner: place.part() for place in places}, here, layout, refuses)


async def asked(place: Place, operation: str) -> Frame:
    """The next request to an owner, which has to be of that operation."""
    frame = await place.stream.request()
    assert frame.request.WhichOneof("operation") == operation, frame
    return frame


async def answer_step(place: Place, version: int) -> Frame:
    """Answers the next step with a version."""
    frame = await asked(place, "step")
    reply = Reply()
    reply.step.version = version
    await place.stream.answer(frame.number, step=reply.step)
    return frame


async def answer_made(place: Place, operation: str) -> Any:
    """Answers the next request that makes an optimizer or scheduler; gives its message."""
    frame = await asked(place, operation)
    reply = Reply()
    getattr(reply, operation).object.CopyFrom(info_of("step", owner=place.session.owner))
    await place.stream.answer(frame.number, **{operation: getattr(reply, operation)})
    return getattr(frame.request, operation)


async def answer_state(place: Place, state: Any) -> Ref:
    """Answers the next request for a state; gives whose it is."""
    frame = await asked(place, "state")
    reply = Reply()
    payload = encoded(reply.state.state, state)
    await place.stream.answer(frame.number, payload, state=reply.state)
    return Ref.from_message(frame.request.state.target)
