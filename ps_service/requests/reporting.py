"""The handlers that report the status of an owner, and what it has measured in the last minutes."""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

import psutil

from ps_service.hosting.pinned import Pinned
from ps_service.measures.curve_messages import message_of
from ps_service.measures.events import MOST_EVENTS
from ps_service.measures.histogram import quantile
from ps_service.memory.available import memory
from ps_service.metrics.counters import LOOKS
from ps_service.requests import administration, status_filter
from ps_service.requests.directory import describe
from ps_service.tables.stand_in import AllRows, RowsOfTable
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.release import RELEASE
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject
    from ps_service.measures.histogram import Distribution
    from ps_service.requests.context import RequestContext
    from ps_service.sessions.effects import EffectLog

_USUAL: Final = 1000
"""Entries of each list unless the request asks for another number."""

_MOST: Final = 10_000
"""Most entries of each list, so that the reply fits into one message."""

_EVENT_CHARACTERS: Final = 512 * 1024
"""Most characters of all events of one reply."""

_MOST_NAMED: Final = 16
"""Most parameter groups, and most trainers that a round waits for, that are listed of one optimizer."""

_MOST_SAMPLES: Final = 100
"""Most samples of one reply, which are copied on the event loop."""


def status(ctx: RequestContext, request: pb.StatusRequest, reply: pb.StatusReply) -> None:
    """Reports the owner's trainers, objects, optimizers, passes, counts and memory. The request does not count."""
    write_status(ctx.engine, request, reply)
    if ctx.asker is not None and not ctx.asker.identity.is_everywhere:
        status_filter.reduce(ctx.engine, ctx.asker, reply)


def write_status(engine: Engine, request: pb.StatusRequest, reply: pb.StatusReply) -> None:
    """Writes the status of an owner into a reply. May be called in any thread; takes milliseconds."""
    most = min(request.most or _USUAL, _MOST)
    _write_owner(engine, reply)
    _write_requests(engine, reply)
    table_bytes = _write_hosted(engine, reply, most, not request.without_objects)
    reply.kinds.update(engine.object_counts.kinds)
    reply.sessions, reply.connected_sessions = len(engine.sessions), engine.sessions.connected
    reply.trainers.extend(administration.list_sessions(engine, most))
    reply.contexts = len(engine.contexts)
    reply.passes.extend(administration.list_contexts(engine, most, oldest=True))
    _write_group(engine, most, reply)
    _write_memory(engine, table_bytes, reply)
    if engine.durability.log is not None:
        engine.durability.log.describe(reply.log)
    _write_quotas(engine, most, reply)
    _write_events(engine, request, reply)


def _write_owner(engine: Engine, reply: pb.StatusReply) -> None:
    reply.owner, reply.version = engine.name, RELEASE
    reply.uptime_seconds = engine.uptime_seconds()
    reply.time_seconds = time.time()
    reply.process_id, reply.host_name, reply.device = os.getpid(), socket.gethostname(), str(engine.device)
    reply.serving, reply.stalled, reply.state = not engine.draining, engine.compute.stalled, engine.state


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
            calls=count.durations.count,
            errors=count.errors,
            seconds=count.durations.sum,
            p50_seconds=_quantile(count.durations, 0.5),
            p99_seconds=_quantile(count.durations, 0.99),
        )


def _write_hosted(engine: Engine, reply: pb.StatusReply, most: int, objects_too: bool) -> int:
    """Describes optimizers and tables, and other objects if they are wanted; returns the bytes of all tables."""
    object_counts = engine.object_counts
    hosted = engine.registry.objects()
    optimizers = [each for each in hosted if isinstance(each.value, HostedOptimizer)]
    objects = [each for each in hosted if not isinstance(each.value, HostedOptimizer)]
    tables = [_table(name, table) for name, table in list(object_counts.tables.items())]
    table_bytes = sum(each.bytes for each in tables)
    reply.objects.extend(map(_object, _first(objects, most if objects_too else 0)))
    reply.optimizers.extend(_optimizer(each, each.value, engine.durability.log) for each in _first(optimizers, most))
    reply.tables.extend(tables[:most])
    reply.objects_hosted, reply.optimizers_hosted, reply.tables_hosted = len(hosted), len(optimizers), len(tables)
    reply.parameters = object_counts.parameters.elements + sum(each.rows * each.dim for each in tables)
    reply.bytes = object_counts.parameters.nbytes + object_counts.buffers.nbytes + table_bytes
    reply.steps_per_second = sum(each.value.pace.per_second() for each in optimizers)
    return table_bytes


def _first(objects: list[HostedObject], most: int) -> list[HostedObject]:
    """At most so many objects: those with names first."""
    return objects if len(objects) <= most else sorted(objects, key=lambda each: not each.name)[:most]


def _object(hosted: HostedObject) -> pb.ObjectStatus:
    if isinstance(hosted.value, RowsOfTable):
        elements, nbytes = hosted.value.shard.size * hosted.value.shard.dim, hosted.value.shard.memory
    elif isinstance(hosted.value, Pinned):
        elements, nbytes = hosted.value.elements, hosted.value.nbytes
    else:
        elements, nbytes = hosted.size
    return pb.ObjectStatus(
        name=hosted.name,
        class_name=hosted.class_name,
        parameters=elements,
        bytes=nbytes,
        references=hosted.references,
        snapshot=hosted.value.snapshot.name if isinstance(hosted.value, Pinned) else "",
    )


def _optimizer(hosted: HostedObject, optimizer: HostedOptimizer, log: EffectLog | None) -> pb.OptimizerStatus:
    rounds, staleness = optimizer.rounds, optimizer.pace.staleness()
    rates = [group.get("lr") for group in optimizer.optimizer.param_groups[:_MOST_NAMED]]
    return pb.OptimizerStatus(
        name=hosted.name,
        class_name=getattr(optimizer.optimizer, "options_class", hosted.class_name),
        version=optimizer.version,
        parameters=sum(_elements(each.parameter) for each in optimizer.covered),
        lr=[float(rate) for rate in rates if rate is not None],
        steps_per_second=optimizer.pace.per_second(),
        staleness_p50=None if staleness is None else staleness.p50,
        staleness_p99=None if staleness is None else staleness.p99,
        policy="" if rounds is None else str(rounds.policy),
        members=len(optimizer.trainers),
        waiting_for=() if rounds is None else rounds.missing(_MOST_NAMED),
        owners=() if rounds is None else rounds.owners,
        durable_version=None if log is None else log.durable_version(hosted.ref.object_id),
    )


def _table(name: str, table: RowsOfTable) -> pb.TableStatus:
    shard = table.shard
    return pb.TableStatus(
        name=name,
        rows=shard.size,
        bytes=shard.memory,
        dim=shard.dim,
        updates=shard.updates,
        **dataclasses.asdict(shard.statistics),
    )


def _elements(parameter: torch.Tensor) -> int:
    if isinstance(parameter, AllRows):
        return parameter.table.shard.size * parameter.table.shard.dim
    return parameter.numel()


def _write_group(engine: Engine, most: int, reply: pb.StatusReply) -> None:
    reply.references = engine.registry.references
    reply.borrowed = engine.membership.peers.borrowed
    reply.directory = engine.membership.peers.directory
    members = engine.directory.members()
    reply.members_known = len(members)
    for member in members[:most]:
        describe(reply.members.add(), member)
        reply.members[-1].away = bool(member.session) and engine.sessions.is_away(member.session)
    communicators = engine.communicators.snapshot()
    reply.communicators_open = len(communicators)
    reply.communicators.extend(pb.CommunicatorStatus(**each.as_plain()) for each in communicators[:most])


def _write_memory(engine: Engine, table_bytes: int, reply: pb.StatusReply) -> None:
    budget, limits, object_counts = engine.budget, engine.limits, engine.object_counts
    reply.resident_bytes = psutil.Process().memory_info().rss
    reply.request_bytes, reply.waiting_bytes = budget.requests, budget.waiting
    reply.answer_bytes = engine.reply_cache.nbytes + budget.unsent
    reply.context_bytes = engine.held.nbytes
    reply.shared_bytes = sum(each.shared_bytes for each in list(engine.shared_memory))
    for kind, nbytes, budget_bytes, largest in (
        ("process", reply.resident_bytes, memory(), None),
        ("parameters", object_counts.parameters.nbytes + object_counts.buffers.nbytes, 0, None),
        ("tables", table_bytes, engine.table_budget.limit, None),
        ("contexts", reply.context_bytes, engine.held.limit, engine.held.largest),
        ("requests", reply.request_bytes, limits.max_owner_bytes, None),
        ("waiting", reply.waiting_bytes, 0, None),
        ("answers", reply.answer_bytes, limits.max_owner_bytes, None),
        ("collectives", engine.communicators.nbytes, limits.max_owner_bytes, None),
        ("shared_memory", reply.shared_bytes, 0, None),
    ):
        reply.memory.add(kind=kind, bytes=nbytes, budget_bytes=budget_bytes, largest_bytes=largest)


def _write_quotas(engine: Engine, most: int, reply: pb.StatusReply) -> None:
    for each in islice(engine.quotas.uses(), most) if engine.quotas.is_on else ():
        told = reply.quotas.add(section=each.section, name=each.name, used=each.used)
        if each.quota < math.inf:
            told.quota = each.quota


def _write_events(engine: Engine, request: pb.StatusRequest, reply: pb.StatusReply) -> None:
    reply.last_event = engine.events.last
    found, characters = [], 0
    for each in reversed(engine.events.latest(min(request.events, MOST_EVENTS), request.events_after)):
        characters += len(each.text) + len(each.traceback) + len(each.subject)
        if characters > _EVENT_CHARACTERS:
            break
        found.append(each)
    reply.events.extend(pb.Event(**each.as_plain()) for each in reversed(found))


def history(ctx: RequestContext, request: pb.HistoryRequest, reply: pb.HistoryReply) -> None:
    """Reports the first samples after a number, and the limits that they are compared with."""
    write_history(ctx.engine, request.after, reply)
    if request.with_curves:
        asker = ctx.asker
        wanted = None if asker is None or asker.identity.is_everywhere else status_filter.near(asker)
        write_curves(ctx.engine, request.curves, reply, wanted)


def write_history(engine: Engine, after: int, reply: pb.HistoryReply) -> None:
    """Describes an owner and its samples after a number in a message. Used on the event loop."""
    reply.owner, reply.version = engine.name, RELEASE
    reply.incarnation = engine.incarnations.current
    reply.state = engine.state
    reply.uptime_seconds = engine.uptime_seconds()
    reply.memory_bytes = memory()
    reply.max_owner_bytes = engine.limits.max_owner_bytes
    reply.max_context_bytes = engine.limits.max_context_bytes or memory() // 2
    reply.objects = sum(engine.object_counts.kinds.values())
    now = time.monotonic()
    for sample in engine.history.after(after, _MOST_SAMPLES):
        told = reply.samples.add()
        told.CopyFrom(sample.message)
        told.age_seconds = max(now - sample.ended, 0.0)


def write_curves(
    engine: Engine, known: Mapping[int, int], reply: pb.HistoryReply, wanted: Callable[[str], bool] | None = None
) -> None:
    """Writes the curves of an owner, as far as they are not known; arguments as for `Curves.news`."""
    news = engine.curves.news(known, wanted)
    reply.curves.extend(map(message_of, news.fresh))
    reply.curve_numbers.extend(news.numbers)
    reply.ended_curves.extend(news.ended)
    reply.curve_values_left_out = news.left_out


def _quantile(durations: Distribution, q: float) -> float:
    return quantile(q, dict(enumerate(durations.counts)), durations.bounds) or 0.0
