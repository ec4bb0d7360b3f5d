"""Reporting: the handler that tells what an owner hosts and does."""

from __future__ import annotations

import time
from typing import Final

import psutil

from ps_service.engine import report
from ps_service.release import RELEASE
from ps_service.rpc.exchange import Exchange
from ps_service.rpc.membership import describe
from ps_wire.v1 import operations_pb2 as pb

_STARTED: Final = time.monotonic()


def status(exchange: Exchange, request: pb.StatusRequest, reply: pb.StatusReply) -> None:
    """Tells what the owner hosts and does."""
    now = report.report(exchange.engine)
    reply.owner = exchange.engine.name
    reply.version = RELEASE
    reply.uptime_seconds = time.monotonic() - _STARTED
    reply.serving = not exchange.engine.draining
    reply.resident_bytes = psutil.Process().memory_info().rss
    for name in ("parameters", "bytes", "sessions", "connected_sessions", "contexts", "kept_answers"):
        setattr(reply, name, getattr(now, name))
    reply.calls_per_second = now.calls_per_second
    reply.lanes, reply.shared_bytes = exchange.engine.lanes()
    reply.requests_in_flight = exchange.engine.counters.running
    reply.waiting = exchange.engine.counters.waiting
    compute = exchange.engine.compute
    reply.threads, reply.threads_spare = compute.threads, compute.spare
    reply.threads_waiting, reply.threads_lost = compute.waiting, compute.lost
    reply.stalled = compute.stalled
    budget, journal = exchange.engine.budget, exchange.engine.journal
    reply.request_bytes, reply.waiting_bytes = budget.requests, budget.waiting
    reply.answer_bytes, reply.paused_sessions = journal.nbytes + budget.unsent, budget.paused
    reply.context_bytes = exchange.engine.held.nbytes
    reply.references = exchange.engine.registry.references
    reply.borrowed = exchange.engine.peers.borrowed
    for member in exchange.engine.directory.members():
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
        reply.optimizers.add(name=one.name, class_name=one.class_name, version=one.version, parameters=one.parameters)
    for name, count in sorted(now.operations.items()):
        reply.operations.add(name=name, calls=count.calls, errors=count.errors, seconds=count.seconds)
