"""Sessions and open passes, as lists of them describe them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ps_service.requests import evictions
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.passes.pass_context import PassContext
    from ps_service.sessions.sessions import SessionState
    from ps_wire.refs import ContextId


def sessions(engine: Engine, most: int) -> list[pb.SessionInfo]:
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


def contexts(engine: Engine, most: int, oldest: bool = False) -> list[pb.ContextInfo]:
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
        references=engine.registry.references_of(trainer),
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
