"""Objects of an owner that a test plays, and its answers to calls of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ps_wire.codec import dtypes
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.refs import Ref, new_object_id
from ps_wire.v1.frames_pb2 import Frame, Reply
from ps_wire.v1.operations_pb2 import ObjectInfo, ParameterInfo
from ps_wire.v1.values_pb2 import Handle
from tests.trainer_client.scripted_owner import Stream
from trainer_client.handles.handles import RemoteModule, RemoteObject, handle_from
from trainer_client.session.session import Session


def info_of(*methods: str, parameters: Sequence[str] = (), owner: str = "ps0", name: str = "") -> ObjectInfo:
    """What an owner says of an object; its parameters have the shape (2,)."""
    return ObjectInfo(
        handle=Ref(owner, new_object_id()).to_message(),
        class_name="models.Thing",
        name=name,
        methods=methods,
        parameters=[
            ParameterInfo(name=each, shape=[2], dtype=dtypes.TO_WIRE[torch.float32], requires_grad=True)
            for each in parameters
        ],
    )


def thing(session: Session, *methods: str) -> RemoteObject:
    """The handle of an object that is no module."""
    return handle_from(session, info_of(*methods, owner=session.owner))


def module(session: Session, *parameters: str) -> RemoteModule:
    """The handle of a module."""
    made = handle_from(session, info_of("forward", "extra", parameters=parameters, owner=session.owner))
    assert isinstance(made, RemoteModule)
    return made


async def answer_call(stream: Stream, frame: Frame, value: Any) -> None:
    """Answers a call; handles in the value are granted."""
    reply, payload = Reply(), PayloadWriter()

    def handle(found: Any) -> Handle | None:
        return found if isinstance(found, Handle) else None

    Encoder(payload, handle).encode_into(reply.call.result, value)
    await stream.answer(frame.number, b"".join(payload.chunks), call=reply.call)
