"""Keeps the request that an object was made from, so that the owner can make it again after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import Message

from ps_service.hosting.objects import CreationSpec
from ps_wire.refs import Ref
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ps_service.hosting.objects import HostedObject
    from ps_service.requests.context import RequestContext


def with_spec(
    ctx: RequestContext, operation: str, request: Message, made: tuple[HostedObject, bool]
) -> tuple[HostedObject, bool]:
    """Sets the creation spec of a new object, if the owner keeps checkpoints; returns `made`."""
    hosted, is_new = made
    if is_new and ctx.engine.durable:
        # The buffer of the request will be reused.
        payload = None if ctx.payload is None else ctx.payload.copy()
        request = type(request).FromString(request.SerializeToString())
        named = {Ref.from_message(handle)._replace(parameter="") for handle in handles_in(request)}
        dependencies = [ctx.engine.registry.find(ref) for ref in named if ref.owner == ctx.engine.name]
        hosted.creation_spec = CreationSpec(
            operation, request, payload, tuple(dependencies), len(dependencies) == len(named)
        )
    return made


def handles_in(message: Message) -> Iterator[Handle]:
    """All handles in a message, which may be changed there."""
    if isinstance(message, Handle):
        yield message
        return
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from handles_in(value)
        elif field.message_type is not None:
            for item in value:
                yield from handles_in(item)
