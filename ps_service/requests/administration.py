"""Lists sessions and contexts, and ends them, for an operator. Used on the event loop, except for the lists."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from ps_service.sessions.gate import Gate
from ps_wire.errors import InvalidArgumentError, UnavailableError, UnknownNameError
from ps_wire.numbers import check_seconds
from ps_wire.refs import ContextId
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.group.formation import MemberEntry
    from ps_service.passes.pass_context import PassContext
    from ps_service.requests.context import RequestContext
    from ps_service.sessions.sessions import SessionState

T = TypeVar("T")

BY_OPERATOR: Final = "its operator ended it"
"""The reason in the error that the trainer of an evicted session or context gets."""

_OPERATOR: Final = ("operator", BY_OPERATOR, " by the operator")
_SESSION: Final = re.compile(r"(?P<digits>[0-9a-f]{1,8})(?:~(?P<number>[0-9]{1,18}))?")
_CONTEXT: Final = re.compile(r"(?P<digits>[0-9a-f]{1,8})/(?P<number>[0-9]{1,20})")

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
    reply.CopyFrom(ctx.engine.checkpoints.write(ctx.by()))


def evict(ctx: RequestContext, request: pb.EvictRequest, reply: pb.EvictReply) -> None:
    """Ends a session, a context, or all contexts that have been unused for some time."""
    engine = ctx.engine
    # The end of a session may complete rounds, whose steps must not be stopped halfway.
    engine.parameter_locks.this_thread.nonblocking = False
    match request.WhichOneof("what"):
        case "session":
            reply.sessions.append(evict_session(engine, request.session, ctx.by()))
        case "context":
            reply.contexts.append(evict_context(engine, request.context, ctx.by()))
        case "unused_seconds":
            reply.contexts.extend(evict_unused(engine, request.unused_seconds, ctx.by()))
        case _:
            raise InvalidArgumentError("say which session or context is to be ended, or how long contexts are unused")


def list_sessions(engine: Engine, most: int) -> list[pb.SessionInfo]:
    """The oldest sessions, at most so many. May be called in any thread."""
    ids = session_ids(engine)
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
    ids, used = session_ids(engine), in_use(engine)

    def by_use(context: PassContext) -> tuple[bool, float]:
        return context.id in used, context.used

    def by_age(context: PassContext) -> tuple[float, ContextId]:
        return context.began, context.id

    found = sorted(engine.contexts.all(), key=by_age if oldest else by_use)
    return [_context(engine, each, used[each.id], ids) for each in found[:most]]


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


def in_use(engine: Engine) -> Counter[ContextId]:
    """The number of unanswered requests that use each context."""
    found: Counter[ContextId] = Counter()
    for each in engine.requests.running():
        if "context" in each.request.DESCRIPTOR.fields_by_name and each.request.HasField("context"):
            found[ContextId.from_message(each.request.context)] += 1
    return found


def end_unused(engine: Engine) -> None:
    """Ends the contexts that no request has used for longer than the owner allows, and those that are older than a
    quota allows."""
    for context, most in engine.contexts.older():
        told = f"it was open for {most:g} s, the quota context_seconds"
        why = f"{told}, so the owner ended it; make passes shorter, or have its operator raise the quota"
        _lose(engine, context, "unused", why, f": {told}")
    limit = engine.limits.max_context_seconds
    if not limit:
        return
    unused = f"no request had used it for {limit:g} s"
    why = f"{unused}, the limit max_context_seconds on this owner, so the owner ended it"
    for context in engine.contexts.unused(limit, in_use(engine)):
        _lose(engine, context, "unused", f"{why}; raise the limit there if passes take that long", f": {unused}")


def session_ids(engine: Engine) -> dict[bytes, str]:
    """The displayed id of each session, by trainer."""
    sessions = engine.sessions.all()
    alike = Counter(session.name for session in sessions)
    return {
        session.trainer: session.name if alike[session.name] == 1 else f"{session.name}~{session.number}"
        for session in sessions
    }


def evict_session(engine: Engine, id: str, by: Mapping[str, str] | None = None) -> str:
    """Ends a session, named by its displayed id or a prefix of it: its trainer loses it as if its lease had run out.

    Returns its full displayed id. Raises `InvalidArgumentError` if the id is malformed or ambiguous, `UnknownNameError`
    if there is none, and `UnavailableError` if the owner has drained.
    """
    _check_serving(engine)
    match = _SESSION.fullmatch(id.lower())
    if match is None:
        raise InvalidArgumentError(f"{id!r} is not the id of a session; one looks like 0123abcd, or 0123abcd~7")
    digits, number, ids = match["digits"], match["number"], session_ids(engine)
    meant = [
        each
        for each in engine.sessions.all()
        if each.name.startswith(digits) and (number is None or each.number == int(number))
    ]
    session = _only(f"session {id}", meant, lambda each: ids[each.trainer])
    session.why_lost = BY_OPERATOR
    engine.counters.sessions_ended["operator"] += 1
    name = ids[session.trainer]
    text = f"session {name} was ended by the operator"
    engine.events.note("ended", text, "warning", trainer=session.name, by=by)
    engine.requests.dismiss(session)
    return name


def end_replaced(engine: Engine, entry: MemberEntry, by: MemberEntry) -> None:
    """Ends the session of a member of this owner's directory, because a later start of its state has replaced it. If it
    still runs, it enters again, and is refused."""
    session = engine.sessions.get(entry.session)
    if session is None:
        return
    session.why_lost = f"a later start of the state of {entry.name!r} has taken its place, at {by.address}"
    moved = f"from {entry.address} to {by.address}" if by.address != entry.address else f"at {by.address}"
    engine.events.note("replaced", f"{entry.name} goes on {moved}", trainer=session.name)
    engine.requests.dismiss(session)


def evict_context(engine: Engine, id: str, by: Mapping[str, str] | None = None) -> str:
    """Ends a context; requests that use it afterwards raise `ContextLostError`. Returns and raises as
    `evict_session`."""
    _check_serving(engine)
    match = _CONTEXT.fullmatch(id.lower())
    if match is None:
        raise InvalidArgumentError(f"{id!r} is not the id of a context; one looks like 0123abcd/7")
    digits, number = match["digits"], int(match["number"])
    contexts = engine.contexts.all()
    meant = [each for each in contexts if each.id.number == number and each.id.trainer.hex().startswith(digits)]
    context = _only(f"context {id}", meant, lambda each: str(each.id))
    _lose(engine, context, *_OPERATOR, by)
    return str(context.id)


def evict_unused(engine: Engine, seconds: float, by: Mapping[str, str] | None = None) -> list[str]:
    """Ends the contexts that no request has used for some seconds; returns their displayed ids."""
    _check_serving(engine)
    check_seconds("the age of unused contexts", seconds)
    unused = engine.contexts.unused(seconds, in_use(engine))
    return [str(context.id) for context in unused if _lose(engine, context, *_OPERATOR, by)]


def _lose(
    engine: Engine, context: PassContext, kind: str, why: str, how: str, by: Mapping[str, str] | None = None
) -> bool:
    """Ends a context, for a reason for its trainer and another for the event. False if it has ended before."""
    if not engine.contexts.lose(context.id, why):
        return False
    engine.counters.contexts_ended[kind] += 1
    text = f"context {context.id} was ended{how}"
    engine.events.note("pass_ended", text, "warning", subject=str(context.id), by=by)
    return True


def _only(what: str, found: list[T], name: Callable[[T], str]) -> T:
    if not found:
        raise UnknownNameError(f"there is no {what} here; `ps-service sessions` lists sessions and contexts")
    if len(found) > 1:
        some = ", ".join(sorted(map(name, found))[:5])
        more = ", …" if len(found) > 5 else ""
        raise InvalidArgumentError(f"{what} is ambiguous: it matches {len(found)} ({some}{more}); give more of the id")
    return found[0]


def _check_serving(engine: Engine) -> None:
    # A checkpoint is being written, or was: it includes what would be freed now.
    if engine.gate.state is Gate.State.STOPPED:
        raise UnavailableError(f"owner {engine.name!r} is shutting down")
