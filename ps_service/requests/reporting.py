"""The handler that reports the status of an owner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import psutil

from ps_service.metrics import report
from ps_service.requests.directory import describe
from ps_wire.release import RELEASE

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext
    from ps_wire.v1 import operations_pb2 as pb

_STARTED: Final = time.monotonic()


def status(ctx: RequestContext, request: pb.StatusRequest, reply: pb.StatusReply) -> None:
    """Reports the owner's objects, optimizers, sessions, counts and memory."""
    now = report.report(ctx.engine)
    reply.owner = ctx.engine.name
    reply.version = RELEASE
    reply.uptime_seconds = time.monotonic() - _STARTED
    reply.serving = not ctx.engine.draining
    reply.resident_bytes = psutil.Process().memory_info().rss
    for name in ("parameters", "bytes", "sessions", "connected_sessions", "contexts", "kept_answers"):
        setattr(reply, name, getattr(now, name))
    reply.calls_per_second = now.calls_per_second
    shared_memory = ctx.engine.shared_memory
    reply.shared_memory_connections, reply.shared_bytes = len(shared_memory), shared_memory.shared_bytes
    reply.direct_connections = len(ctx.engine.direct)
    reply.requests_in_flight = ctx.engine.counters.running
    reply.waiting = ctx.engine.counters.waiting
    compute = ctx.engine.compute
    reply.threads, reply.threads_spare = compute.threads, compute.spare
    reply.threads_waiting, reply.threads_lost = compute.waiting, compute.lost
    reply.stalled = compute.stalled
    budget, reply_cache = ctx.engine.budget, ctx.engine.reply_cache
    reply.request_bytes, reply.waiting_bytes = budget.requests, budget.waiting
    reply.answer_bytes, reply.paused_sessions = reply_cache.nbytes + budget.unsent, budget.paused
    reply.context_bytes = ctx.engine.held.nbytes
    reply.references = ctx.engine.registry.references
    reply.borrowed = ctx.engine.membership.peers.borrowed
    for member in ctx.engine.directory.members():
        describe(reply.members.add(), member)
    for each in now.objects:
        reply.objects.add(
            name=each.name,
            class_name=each.class_name,
            parameters=each.parameters,
            bytes=each.bytes,
            references=each.references,
        )
    for one in now.optimizers:
        reply.optimizers.add(
            name=one.name,
            class_name=one.class_name,
            version=one.version,
            parameters=one.parameters,
            policy=one.policy,
            members=one.members,
            waiting_for=one.waiting_for,
        )
    for table in now.tables:
        reply.tables.add(name=table.name, rows=table.rows, bytes=table.bytes, dim=table.dim, updates=table.updates)
    for name, count in sorted(now.operations.items()):
        reply.operations.add(name=name, calls=count.calls, errors=count.errors, seconds=count.seconds)
