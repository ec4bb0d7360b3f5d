"""The handlers that list sessions and contexts, and end them, and what the lists say of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ps_service.requests import evictions
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.passes.pass_context import PassContext
    from ps_service.requests.context import RequestContext
    from ps_service.sessions.sessions import SessionState
    from ps_wire.refs import ContextId


_MOST: Final = 10_000
"""Most sessions, and most contexts, that are listed, so that they fit into one message."""


def sessions(ctx: RequestContext, request: pb.SessionsRequest, reply: pb.SessionsReply) -> None:
    """Lists sessions, the oldest first, and contexts, the longest unused first."""
    engine = ctx.engine
    reply.owner, reply.open_contexts = engine.name, len(engine.contexts)
    reply.sessions.extend(list_sessions(engine, _MOST))
    reply.contexts.extend(list_contexts(engine, _MOST))


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


def list_sessions(engine: Engine, most: int) -> list[pb.SessionInfo]:
    """The oldest sessions, at most so many. May be called in any thread."""
    ids = evictions.session_ids(engine)
    used_by: dict[bytes, list[PassContext]] = {}
    for context in engine.contexts.all():
        for caller in tuple(context.callers):
            used_by.setdefault(caller, []).append(context)
    running = Counter(each.trainer for each in engine.requests.running())
    members = {entry.session: entry.name for entry in engine.directory.members()}
    found = []
    for session in engine.sessions.all()[:most]:
        trainer = session.trainer
        info = _session(engine, session, used_by.get(trainer, []))
        info.id, info.requests_in_flight = ids.get(trainer, session.name), running[trainer]
        info.member = session.process.member or members.get(trainer, "")
        found.append(info)
    return found


def list_contexts(engine: Engine, most: int, oldest: bool = False) -> list[pb.ContextInfo]:
    """The open passes that have been unused for the longest time, or the oldest. May be called in any thread."""
    ids, in_use = evictions.session_ids(engine), evictions.in_use(engine)

    def by_use(context: PassContext) -> tuple[bool, float]:
        return context.id in in_use, context.used

    found = sorted(engine.contexts.all(), key=_began if oldest else by_use)
    return [_context(engine, each, in_use[each.id], ids) for each in found[:most]]


def _began(context: PassContext) -> tuple[float, ContextId]:
    return context.began, context.id


def _session(engine: Engine, session: SessionState, contexts: list[PassContext]) -> pb.SessionInfo:
    now, trainer = engine.contexts.clock(), session.trainer
    holding, process = engine.budget.held_by(trainer), session.process
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
        context_bytes=engine.held.nbytes_of(trainer),
        references=sum(engine.registry.held_by(trainer).values()),
        program=process.program,
        host_name=process.host_name,
        process_id=process.id,
        steps=session.pace.steps,
        steps_per_second=session.pace.per_second(),
        last_seen_seconds=max(0.0, time.perf_counter() - session.last_request),
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
