"""The tensors that messages describe; without torch, which takes seconds to import."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message

from ps_wire.v1.values_pb2 import Tensor


def tensors_of(message: Message) -> Iterator[Tensor]:
    """The tensors that a value describes, at any depth."""
    if isinstance(message, Tensor):
        yield message
        return
    for described, value in message.ListFields():
        if described.message_type is not None:
            for each in (value,) if isinstance(value, Message) else value:
                yield from tensors_of(each)
