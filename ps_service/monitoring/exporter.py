"""Exports an owner's metrics to Prometheus; values are read on each scrape.

docs/metrics.md lists them. Objects, trainers and contexts are counts: one series for each would cost too much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

import torch
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ps_service.metrics.counters import DURATION_BOUNDS, NO_REQUESTS
from ps_service.passes.staleness import LONGEST_NAME, MOST_NAMES, STALENESS_BOUNDS
from ps_wire.errors import BY_CODE
from ps_wire.operations import OPERATIONS
from ps_wire.release import RELEASE
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.operations_pb2 import LogStatus

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.measures.histogram import Distribution

_LIMITS: Final[dict[tuple[float, ...], list[str]]] = {
    bounds: [*map(floatToGoString, bounds), "+Inf"] for bounds in (DURATION_BOUNDS, STALENESS_BOUNDS)
}

_MOST_QUOTAS: Final = 1000
"""Most series of quotas: those of all together come first, and then those of identities."""

CODES: Final = {code: ErrorCode.Name(code).removeprefix("ERROR_").lower() for code in BY_CODE}
"""The label of an error, by its code on the wire."""


def registry(engine: Engine) -> CollectorRegistry:
    """A registry with the metrics of an owner, and those of its process from prometheus_client."""
    made = CollectorRegistry()
    made.register(OwnerCollector(engine))
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    GCCollector(registry=made)
    return made


class OwnerCollector(Collector):
    """Collects an owner's metrics on its event loop, which takes about three milliseconds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told = {"owner": engine.name, "version": RELEASE, "torch": str(torch.__version__)}

    def collect(self) -> Iterator[Metric]:
        """Every metric family. Series with labels known in advance are exported from the start, with 0."""
        yield from self._owner()
        yield from self._requests()
        yield from self._waiting()
        yield from self._traffic()
        yield from self._trainers()
        yield from self._quotas()
        yield from self._objects()
        yield from self._tables()
        yield from self._training()
        yield from self._log()
        yield from self._audit()

    def _owner(self) -> Iterator[Metric]:
        draining = int(self._engine.draining)
        yield InfoMetricFamily("ps_owner", "The owner: its name, its release and that of torch.", self._told)
        yield _gauge("ps_draining", "1 while the owner accepts no new work, because it is about to stop.", draining)

    def _requests(self) -> Iterator[Metric]:
        counted, label = self._engine.counters.operations(), ["operation"]
        what = "Time from accepting a request to its answer, including the wait for a thread."
        durations = HistogramMetricFamily("ps_request_duration_seconds", what, labels=label, unit="seconds")
        what = "Requests that were accepted and ended in an error."
        failures = CounterMetricFamily("ps_request_errors", what, labels=label)
        for operation in OPERATIONS:
            count = counted.get(operation, NO_REQUESTS)
            _add(durations, [operation], count.durations)
            failures.add_metric([operation], count.errors)
        yield durations
        yield failures
        counts = self._engine.counters.errors()
        errors = {name: counts.get(code, 0) for code, name in CODES.items()}
        what = "Errors sent to trainers, including those of requests that were not accepted."
        yield _by("code", CounterMetricFamily, "ps_errors", what, errors)

    def _waiting(self) -> Iterator[Metric]:
        counters, compute = self._engine.counters, self._engine.compute
        what = "Time that requests in compute threads had waited for a thread."
        queue = HistogramMetricFamily("ps_request_queue_duration_seconds", what, labels=[], unit="seconds")
        _add(queue, [], counters.queue_seconds())
        yield queue
        yield _gauge("ps_requests_in_flight", "Requests that were accepted and have no answer yet.", counters.running)
        what = "Requests that wait for a result while no thread runs them."
        yield _gauge("ps_requests_waiting", what, counters.waiting)
        yield _gauge("ps_compute_queue_length", "Work items that wait for a compute thread.", compute.queued)
        yield _gauge("ps_compute_threads", "Most compute threads that run at once.", compute.threads)
        what = "Compute threads whose work waits for a process or a lock."
        yield _gauge("ps_compute_threads_waiting", what, compute.waiting)
        yield _gauge("ps_compute_threads_lost", "Compute threads held by abandoned work that still runs.", compute.lost)

    def _traffic(self) -> Iterator[Metric]:
        traffic = self._engine.counters.traffic
        received = {transport: each.received for transport, each in traffic.items()}
        sent = {transport: each.sent for transport, each in traffic.items()}
        what = "Bytes of messages from trainers."
        yield _by("transport", CounterMetricFamily, "ps_received_bytes", what, received, "bytes")
        yield _by("transport", CounterMetricFamily, "ps_sent_bytes", "Bytes of messages to trainers.", sent, "bytes")
        shared_memory = self._engine.shared_memory
        what = "Same-host shared-memory connections that are open."
        yield _gauge("ps_shared_memory_connections", what, len(shared_memory))
        what = "Shared memory that the owner writes answers to."
        yield _gauge("ps_shared_memory_bytes", what, sum(each.shared_bytes for each in shared_memory), "bytes")
        yield _gauge("ps_direct_connections", "Direct connections that are open.", len(self._engine.direct))

    def _trainers(self) -> Iterator[Metric]:
        engine, counters, budget = self._engine, self._engine.counters, self._engine.budget
        connected = engine.sessions.connected
        states = {"connected": connected, "disconnected": len(engine.sessions) - connected}
        yield _by("state", GaugeMetricFamily, "ps_sessions", "Sessions of trainers, by state.", states)
        what = "Sessions that the owner ended, by reason."
        yield _by("reason", CounterMetricFamily, "ps_sessions_ended", what, counters.sessions_ended)
        yield _gauge("ps_contexts", "Passes that are open.", len(engine.contexts))
        what = "Open passes that the owner ended, by reason."
        yield _by("reason", CounterMetricFamily, "ps_contexts_ended", what, counters.contexts_ended)
        yield _gauge("ps_kept_answers", "Answers that are kept until they are confirmed.", len(engine.reply_cache))
        held = {
            "requests": budget.requests,
            "waiting": budget.waiting,
            "answers": engine.reply_cache.nbytes + budget.unsent,
            "contexts": engine.held.nbytes,
        }
        what = "Bytes that messages, open contexts and kept results hold."
        yield _by("kind", GaugeMetricFamily, "ps_held_bytes", what, held, "bytes")
        what = "Sessions that are not read from, because there is no space for their messages."
        yield _gauge("ps_paused_sessions", what, budget.paused)
        yield CounterMetricFamily("ps_pauses", "Number of times a session was paused.", budget.pauses)
        what = "Requests that were refused because there was no space for them."
        yield CounterMetricFamily("ps_requests_without_space", what, budget.refusals + engine.held.refusals)
        yield _gauge("ps_members", "Members of the group whose directory the owner keeps.", len(engine.directory))

    def _quotas(self) -> Iterator[Metric]:
        labels = ["section", "quota"]
        used = GaugeMetricFamily("ps_quota_used", "How much is used of what may have a quota.", labels=labels)
        most = GaugeMetricFamily("ps_quota", "How much may be used of it.", labels=labels)
        for each in islice(self._engine.quotas.uses(), _MOST_QUOTAS):
            used.add_metric([each.section, each.name], each.used)
            if each.quota < math.inf:
                most.add_metric([each.section, each.name], each.quota)
        yield from (used, most)

    def _objects(self) -> Iterator[Metric]:
        engine, object_counts = self._engine, self._engine.object_counts
        yield _by("kind", GaugeMetricFamily, "ps_objects", "Hosted objects, by kind.", object_counts.kinds)
        yield _gauge("ps_references", "References of trainers to hosted objects.", engine.registry.references)
        borrowed = engine.membership.peers.borrowed
        yield _gauge("ps_borrowed_references", "References to objects of other owners.", borrowed)
        yield _gauge("ps_parameters", "Elements of all hosted parameters.", object_counts.parameters.elements)
        yield _gauge("ps_parameter_bytes", "Bytes of all hosted parameters.", object_counts.parameters.nbytes, "bytes")

    def _tables(self) -> Iterator[Metric]:
        label = ["table"]
        rows = GaugeMetricFamily("ps_table_rows", "Rows of a table on this owner.", labels=label)
        what = "Bytes of these rows, of their optimizer, and of the map of ids."
        nbytes = GaugeMetricFamily("ps_table_bytes", what, labels=label, unit="bytes")
        updates = CounterMetricFamily("ps_table_updates", "Updates of a table since the start.", labels=label)
        what = "Ids that were looked up in a table, by what became of them."
        ids = CounterMetricFamily("ps_table_ids", what, labels=["table", "result"])
        what = "Rows of a table that were removed, by reason."
        gone = CounterMetricFamily("ps_table_rows_gone", what, labels=["table", "reason"])
        what = "Ids that backwards have brought gradients of a table for."
        gradients = CounterMetricFamily("ps_table_gradient_ids", what, labels=label)
        updated = CounterMetricFamily("ps_table_updated_rows", "Rows that steps of a table have updated.", labels=label)
        what = "Rows that had gone when a gradient for them was to be applied."
        late = CounterMetricFamily("ps_table_late_rows", what, labels=label)
        tables = list(self._engine.object_counts.tables.items())
        for name, table in [each for each in tables if len(each[0]) <= LONGEST_NAME][:MOST_NAMES]:
            rows.add_metric([name], table.shard.size)
            nbytes.add_metric([name], table.shard.memory)
            updates.add_metric([name], table.shard.updates)
            counted = table.shard.statistics
            for result in ("hits", "added", "refused", "missing"):
                ids.add_metric([name, result], getattr(counted, result))
            for reason in ("expired", "evicted", "removed"):
                gone.add_metric([name, reason], getattr(counted, reason))
            gradients.add_metric([name], counted.gradients)
            updated.add_metric([name], counted.updated)
            late.add_metric([name], counted.late)
        yield from (rows, nbytes, updates, ids, gone, gradients, updated, late)

    def _training(self) -> Iterator[Metric]:
        counters, label = self._engine.counters.steps, ["optimizer"]
        steps = CounterMetricFamily("ps_optimizer_steps", "Steps that were applied since the start.", labels=label)
        what = "Steps of other passes between a pass's first read of a parameter and its own step."
        staleness = HistogramMetricFamily("ps_optimizer_staleness_steps", what, labels=label, unit="steps")
        for name, count in counters.snapshot().items():
            steps.add_metric([name], count.steps)
            _add(staleness, [name], count.staleness)
        yield steps
        yield staleness
        optimizers = list(self._engine.object_counts.optimizers.items())
        versions = {name: optimizer.version for name, optimizer in optimizers if counters.has(name)}
        what = "Version of an optimizer: its steps since it was first made."
        yield _by("optimizer", GaugeMetricFamily, "ps_optimizer_version", what, versions)

    def _log(self) -> Iterator[Metric]:
        """Of the log, which need not be there."""
        log, told = self._engine.durability.log, LogStatus()
        if log is not None:
            log.describe(told)
        what = "1 if the log cannot be written: the disk is full, or a sync has failed."
        trouble = {state: int(told.state == state) for state in ("full", "failed")}
        yield _by("state", GaugeMetricFamily, "ps_log_trouble", what, trouble)
        yield _gauge("ps_log_unsynced_records", "Records of the log that are not on the disk.", told.unsynced_records)
        what = "Bytes of the log that are not on the disk."
        yield _gauge("ps_log_unsynced_bytes", what, told.unsynced_bytes, "bytes")
        what = "Time since the first record that is not on the disk was written."
        yield _gauge("ps_log_unsynced_seconds", what, told.unsynced_seconds, "seconds")
        yield _gauge("ps_log_bytes", "Bytes of the files of the log.", told.bytes, "bytes")

    def _audit(self) -> Iterator[Metric]:
        audit = self._engine.events.audit
        lines = {"written": audit.written, "lost": audit.lost} if audit is not None else {"written": 0, "lost": 0}
        what = "Lines of the audit log; those that are lost could not be written."
        yield _by("result", CounterMetricFamily, "ps_audit_lines", what, lines)


def _gauge(name: str, help: str, value: float, unit: str = "") -> Metric:
    return GaugeMetricFamily(name, help, value, unit=unit)


def _by(
    label: str,
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    help: str,
    values: Mapping[str, float],
    unit: str = "",
) -> Metric:
    """A family with a series for each value of a label."""
    family = kind(name, help, labels=[label], unit=unit)
    for each, value in dict(values).items():
        family.add_metric([each], value)
    return family


def _add(family: HistogramMetricFamily, labels: list[str], found: Distribution) -> None:
    family.add_metric(labels, list(zip(_LIMITS[found.bounds], found.cumulative, strict=True)), found.sum)
