"""Requests that move objects to other owners, and requests for objects that move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_wire.codec.messages import messages_in
from ps_wire.errors import ObjectMovedError
from ps_wire.refs import ContextId
from ps_wire.v1.values_pb2 import Handle

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.requests.context import RequestContext
    from ps_wire.v1 import operations_pb2 as pb


def move(ctx: RequestContext, request: pb.MoveRequest, reply: pb.MoveReply) -> None:
    """A part of a move of named objects."""
    ctx.engine.moves.serve(ctx, request, reply)


def check(engine: Engine, request: Any) -> None:
    """Raises `ObjectMovedError` if a request uses an object that must not be used now, because it moves."""
    for handle in messages_in(request, Handle):
        if (held := engine.moves.held.get(handle.object_id)) is not None:
            held.check(request, handle.object_id)


def check_pass(engine: Engine, request: Any, error: BaseException) -> None:
    """Of a request whose object has moved: raises `ContextLostError` if this owner has lost its pass. The other owner
    would not know of that."""
    if isinstance(error, ObjectMovedError) and (id := pass_of(request)) is not None:
        engine.contexts.get(id)


def pass_of(request: Any) -> ContextId | None:
    """The pass of a request."""
    if "context" in request.DESCRIPTOR.fields_by_name and request.HasField("context"):
        return ContextId.from_message(request.context)
    return None
