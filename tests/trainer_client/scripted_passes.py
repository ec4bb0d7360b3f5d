"""Passes of a trainer with an owner that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch

from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.refs import ContextId
from ps_wire.runtime.latency import Latency
from ps_wire.v1.frames_pb2 import Frame, Reply
from ps_wire.v1.operations_pb2 import BackwardReply
from tests.trainer_client.scripted_owner import TRAINER, Stream, decoded, encoded
from trainer_client.contexts.context import Context
from trainer_client.session.session import Session


def new_context(**arguments: Any) -> Context:
    """A context of the trainer to which the sessions of `opened` belong."""
    return Context(ContextId(TRAINER, 1), asyncio.get_running_loop(), **arguments)


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, requires_grad=True)


def short() -> Latency:
    """The latency of calls whose backward is short on the owner."""
    latency = Latency()
    latency.note(0.0)
    return latency


def recorded(
    context: Context,
    session: Session,
    *inputs: torch.Tensor,
    outputs: Sequence[torch.Tensor] = (torch.ones(2),),
    latency: Latency | None = None,
) -> tuple[torch.Tensor, ...]:
    """The outputs of a recorded call, as if the owner had answered it."""
    call = context.record(session, [each for each in inputs if each.requires_grad], latency=latency)
    return call.receive([each.clone() for each in outputs], range(len(outputs)))


async def posted(stream: Stream) -> tuple[Frame, list[torch.Tensor]]:
    """The next backward that arrives at the owner, and the gradients that it brings."""
    frame = await stream.request()
    assert frame.request.HasField("backward"), frame
    return frame, decoded(frame.request.backward.gradients, stream.payload)


async def give(stream: Stream, number: int, *gradients: torch.Tensor | None) -> None:
    """Answers a backward with the gradients of the call's inputs."""
    reply = Reply()
    payload = encoded(reply.backward.gradients, list(gradients))
    await stream.answer(number, payload, backward=reply.backward)


async def give_each(stream: Stream, number: int, *gradients: Sequence[torch.Tensor | None], **fields: Any) -> None:
    """Answers a backward of several calls with the gradients of the inputs of each, and with further fields."""
    reply = Reply()
    payload = PayloadWriter()
    encoder = Encoder(payload)
    messages = [reply.backward.gradients, *(reply.backward.more.add() for _ in gradients[1:])]
    for message, of_inputs in zip(messages, gradients, strict=True):
        encoder.encode_into(message, list(of_inputs))
    reply.backward.MergeFrom(BackwardReply(**fields))
    await stream.answer(number, b"".join(payload.chunks), backward=reply.backward)


async def carry_back(stream: Stream, *gradients: torch.Tensor | None) -> Frame:
    """Answers the next backward; gives its frame."""
    frame, _ = await posted(stream)
    await give(stream, frame.number, *gradients)
    return frame
