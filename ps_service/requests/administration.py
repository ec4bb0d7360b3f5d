"""The handlers that list sessions and contexts, and end them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ps_service.requests import evictions, session_infos
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext
    from ps_wire.v1 import operations_pb2 as pb

_MOST: Final = 10_000
"""Most sessions, and most contexts, that are listed, so that they fit into one message."""


def sessions(ctx: RequestContext, request: pb.SessionsRequest, reply: pb.SessionsReply) -> None:
    """Lists sessions, the oldest first, and contexts, the longest unused first."""
    engine = ctx.engine
    reply.owner, reply.open_contexts = engine.name, len(engine.contexts)
    reply.sessions.extend(session_infos.sessions(engine, _MOST))
    reply.contexts.extend(session_infos.contexts(engine, _MOST))


def checkpoint(ctx: RequestContext, request: pb.CheckpointRequest, reply: pb.CheckpointReply) -> None:
    """Writes a checkpoint now, while the owner goes on."""
    reply.CopyFrom(ctx.engine.checkpoints.write_now())


def evict(ctx: RequestContext, request: pb.EvictRequest, reply: pb.EvictReply) -> None:
    """Ends a session, a context, or all contexts that have been unused for some time."""
    engine = ctx.engine
    # The end of a session may complete rounds, whose steps must not be stopped halfway.
    engine.parameter_locks.this_thread.nonblocking = False
    match request.WhichOneof("what"):
        case "session":
            reply.sessions.append(evictions.evict_session(engine, request.session))
        case "context":
            reply.contexts.append(evictions.evict_context(engine, request.context))
        case "unused_seconds":
            reply.contexts.extend(evictions.evict_unused(engine, request.unused_seconds))
        case _:
            raise InvalidArgumentError("say which session or context is to be ended, or how long contexts are unused")
