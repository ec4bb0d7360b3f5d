"""The handler that reports the status of an owner."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Final

import psutil

from ps_service.measures.events import MOST_EVENTS
from ps_service.memory.available import memory
from ps_service.metrics.counters import LOOKS
from ps_service.requests import hosted_infos, session_infos
from ps_service.requests.directory import describe
from ps_service.sessions.gate import Gate
from ps_wire.release import RELEASE
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.measures.histogram import Distribution
    from ps_service.requests.context import RequestContext

_USUAL: Final = 1000
"""Entries of each list unless the request asks for another number."""

_MOST: Final = 10_000
"""Most entries of each list, so that the reply fits into one message."""

_EVENT_CHARACTERS: Final = 512 * 1024
"""Most characters of all events of one reply."""


def status(ctx: RequestContext, request: pb.StatusRequest, reply: pb.StatusReply) -> None:
    """Reports the owner's trainers, objects, optimizers, passes, counts and memory. The request does not count."""
    write(ctx.engine, request, reply)


def write(engine: Engine, request: pb.StatusRequest, reply: pb.StatusReply) -> None:
    """Writes the status of an owner into a reply. May be called in any thread; takes milliseconds."""
    most = min(request.most or _USUAL, _MOST)
    _write_owner(engine, reply)
    _write_requests(engine, reply)
    table_bytes = hosted_infos.write(engine, reply, most, not request.without_objects)
    reply.kinds.update(engine.census.kinds)
    reply.sessions, reply.connected_sessions = len(engine.sessions), engine.sessions.connected
    reply.trainers.extend(session_infos.sessions(engine, most))
    reply.contexts = len(engine.contexts)
    reply.passes.extend(session_infos.contexts(engine, most, oldest=True))
    _write_group(engine, most, reply)
    _write_memory(engine, table_bytes, reply)
    _write_events(engine, request, reply)


def _write_owner(engine: Engine, reply: pb.StatusReply) -> None:
    reply.owner, reply.version = engine.name, RELEASE
    reply.uptime_seconds = engine.uptime_seconds()
    reply.time_seconds = time.time()
    reply.process_id, reply.host_name, reply.device = os.getpid(), socket.gethostname(), str(engine.device)
    reply.serving = engine.gate.state is Gate.State.OPEN
    reply.stalled = engine.compute.stalled
    reply.state = "draining" if not reply.serving else "stalled" if reply.stalled else "serving"


def _write_requests(engine: Engine, reply: pb.StatusReply) -> None:
    counters, compute = engine.counters, engine.compute
    reply.requests_in_flight, reply.waiting = counters.running, counters.waiting
    reply.calls_per_second = counters.calls_per_second()
    reply.threads, reply.threads_spare = compute.threads, compute.spare
    reply.threads_waiting, reply.threads_lost = compute.waiting, compute.lost
    reply.paused_sessions = engine.budget.paused
    reply.kept_answers = len(engine.reply_cache)
    reply.shared_memory_connections, reply.direct_connections = len(engine.shared_memory), len(engine.direct)
    for name, count in sorted(counters.operations().items()):
        if name in LOOKS:
            continue
        reply.operations.add(
            name=name,
            calls=count.calls,
            errors=count.errors,
            seconds=count.seconds,
            p50_seconds=_quantile(count.durations, 0.5),
            p99_seconds=_quantile(count.durations, 0.99),
        )


def _write_group(engine: Engine, most: int, reply: pb.StatusReply) -> None:
    reply.references = engine.registry.references
    reply.borrowed = engine.membership.peers.borrowed
    reply.directory = engine.membership.peers.directory
    members = engine.directory.members()
    reply.members_known = len(members)
    for member in members[:most]:
        describe(reply.members.add(), member)
        reply.members[-1].away = engine.sessions.is_away(member.session)
    communicators = engine.communicators.snapshot()
    reply.communicators_open = len(communicators)
    reply.communicators.extend(pb.CommunicatorStatus(**each.as_plain()) for each in communicators[:most])


def _write_memory(engine: Engine, table_bytes: int, reply: pb.StatusReply) -> None:
    budget, limits, census = engine.budget, engine.limits, engine.census
    reply.resident_bytes = psutil.Process().memory_info().rss
    reply.request_bytes, reply.waiting_bytes = budget.requests, budget.waiting
    reply.answer_bytes = engine.reply_cache.nbytes + budget.unsent
    reply.context_bytes = engine.held.nbytes
    reply.shared_bytes = engine.shared_memory.shared_bytes
    for kind, nbytes, budget_bytes, largest in (
        ("process", reply.resident_bytes, memory(), None),
        ("parameters", census.parameter_bytes + census.buffer_bytes, 0, None),
        ("tables", table_bytes, engine.table_budget.limit, None),
        ("contexts", reply.context_bytes, engine.held.limit, engine.held.largest),
        ("requests", reply.request_bytes, limits.max_owner_bytes, None),
        ("waiting", reply.waiting_bytes, 0, None),
        ("answers", reply.answer_bytes, limits.max_owner_bytes, None),
        ("collectives", engine.communicators.nbytes, limits.max_owner_bytes, None),
        ("shared_memory", reply.shared_bytes, 0, None),
    ):
        reply.memory.add(kind=kind, bytes=nbytes, budget_bytes=budget_bytes, largest_bytes=largest)


def _write_events(engine: Engine, request: pb.StatusRequest, reply: pb.StatusReply) -> None:
    reply.last_event = engine.events.last
    found, characters = [], 0
    for each in reversed(engine.events.latest(min(request.events, MOST_EVENTS), request.events_after)):
        characters += len(each.text) + len(each.traceback) + len(each.subject)
        if characters > _EVENT_CHARACTERS:
            break
        found.append(each)
    reply.events.extend(pb.Event(**each.as_plain()) for each in reversed(found))


def _quantile(durations: Distribution, share: float) -> float:
    """A quantile in seconds, interpolated within its bucket; that of the last bucket is its lower bound."""
    wanted, below, low = share * durations.count, 0, 0.0
    if not wanted:
        return 0.0
    for high, count in zip(durations.bounds, durations.counts, strict=False):
        if below + count >= wanted:
            return low + (high - low) * (wanted - below) / count
        below, low = below + count, high
    return low
