"""The handlers that list sessions and contexts, and end them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ps_service.sessions import administration
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.passes.pass_context import PassContext
    from ps_service.requests.context import RequestContext
    from ps_service.sessions.sessions import SessionState

_MOST: Final = 10_000
"""Most sessions, and most contexts, that are listed, so that they fit into one message."""


def sessions(ctx: RequestContext, request: pb.SessionsRequest, reply: pb.SessionsReply) -> None:
    """Lists sessions, the oldest first, and contexts, the longest unused first."""
    engine = ctx.engine
    reply.owner = engine.name
    ids = administration.session_ids(engine)
    contexts = engine.contexts.all()
    reply.open_contexts = len(contexts)
    used_by: dict[bytes, list[PassContext]] = {}
    for context in contexts:
        for caller in tuple(context.callers):
            used_by.setdefault(caller, []).append(context)
    running = Counter(each.trainer for each in engine.requests.running())
    for session in engine.sessions.all()[:_MOST]:
        info = _session(engine, session, used_by.get(session.trainer, []))
        info.id, info.requests_in_flight = ids[session.trainer], running[session.trainer]
        reply.sessions.append(info)
    in_use = administration.in_use(engine)
    contexts.sort(key=lambda each: (each.id in in_use, each.used))
    reply.contexts.extend(_context(engine, each, in_use[each.id], ids) for each in contexts[:_MOST])


def evict(ctx: RequestContext, request: pb.EvictRequest, reply: pb.EvictReply) -> None:
    """Ends a session, a context, or all contexts that have been unused for some time."""
    engine = ctx.engine
    match request.WhichOneof("what"):
        case "session":
            reply.sessions.append(administration.evict_session(engine, request.session))
        case "context":
            reply.contexts.append(administration.evict_context(engine, request.context))
        case "unused_seconds":
            reply.contexts.extend(administration.evict_unused(engine, request.unused_seconds))
        case _:
            raise InvalidArgumentError("say which session or context is to be ended, or how long contexts are unused")


def _session(engine: Engine, session: SessionState, contexts: list[PassContext]) -> pb.SessionInfo:
    now, trainer = engine.contexts.clock(), session.trainer
    holding = engine.budget.held_by(trainer)
    return pb.SessionInfo(
        transport=session.transport,
        peer=session.peer,
        connected=session.streams > 0,
        away_seconds=session.idle_seconds(),
        age_seconds=session.age_seconds(),
        contexts=len(contexts),
        oldest_context_seconds=max((now - each.began for each in contexts), default=0.0),
        request_bytes=holding.requests,
        waiting_bytes=holding.waiting,
        answer_bytes=engine.reply_cache.nbytes_of(trainer) + holding.unsent,
        context_bytes=engine.held.of(trainer).nbytes,
        references=engine.registry.references_of(trainer),
    )


def _context(engine: Engine, context: PassContext, requests: int, ids: Mapping[bytes, str]) -> pb.ContextInfo:
    now = engine.contexts.clock()
    return pb.ContextInfo(
        id=str(context.id),
        age_seconds=now - context.began,
        unused_seconds=0.0 if requests else now - context.used,
        requests_in_flight=requests,
        sessions=sorted(ids[each] for each in tuple(context.callers) if each in ids),
    )
