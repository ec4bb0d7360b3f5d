"""Measures an owner once a second, for the page of its group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from ps_service.execution.periodic import Periodic
from ps_service.metrics.counters import LOOKS, NO_REQUESTS
from ps_service.metrics.history import SAMPLE_SECONDS, Sample, buckets
from ps_service.passes.staleness import STALENESS_BOUNDS
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.metrics.counters import OperationCount

_NO_STALENESS: Final = (0,) * (len(STALENESS_BOUNDS) + 1)


class _Totals(NamedTuple):
    """What has been counted since the start of an owner, and when. `counts` are by the field of a sample."""

    at: float
    counts: dict[str, int]
    staleness: list[int]
    operations: dict[str, OperationCount]


class Sampler(Periodic):
    """Adds a sample to the history of an owner every second. A sample takes a quarter of a millisecond."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(SAMPLE_SECONDS, self.sample, "a sample for the page")
        self._engine = engine
        self._clock = clock
        self._process = psutil.Process()
        self._number = 0
        self._before = self._totals()

    def sample(self) -> pb.Sample:
        """Measures what has happened since the last sample, and adds it to the history."""
        engine, budget = self._engine, self._engine.budget
        before, now = self._before, self._totals()
        made = pb.Sample(
            number=self._number + 1,
            seconds=now.at - before.at,
            **{field: count - before.counts[field] for field, count in now.counts.items()},
            staleness=buckets(now.staleness, before.staleness),
            operations=_finished(now.operations, before.operations),
            connected_sessions=engine.sessions.connected,
            requests_in_flight=engine.counters.running,
            resident_bytes=self._process.memory_info().rss,
            parameter_bytes=engine.object_counts.parameters.nbytes,
            table_bytes=sum(table.shard.memory for table in list(engine.object_counts.tables.values())),
            request_bytes=budget.requests + budget.waiting,
            answer_bytes=engine.reply_cache.nbytes + budget.unsent,
            context_bytes=engine.held.nbytes,
        )
        engine.history.add(Sample(now.at, made))
        self._number, self._before = made.number, now
        return made

    def _totals(self) -> _Totals:
        engine, at = self._engine, self._clock()
        steps = engine.counters.steps.snapshot().values()
        staleness = zip(_NO_STALENESS, *(each.staleness.counts for each in steps), strict=True)
        traffic = engine.counters.traffic.values()
        counts = {
            "steps": sum(each.steps for each in steps),
            "trainer_steps": engine.sessions.steps,
            "received_bytes": sum(each.received for each in traffic),
            "sent_bytes": sum(each.sent for each in traffic),
        }
        return _Totals(at, counts, list(map(sum, staleness)), engine.counters.operations())


def _finished(operations: dict[str, OperationCount], before: dict[str, OperationCount]) -> Iterator[pb.OperationSample]:
    """The operations of which a request was answered meanwhile."""
    for name, count in operations.items():
        then = before.get(name, NO_REQUESTS)
        if name not in LOOKS and count.durations.counts != then.durations.counts:
            durations = buckets(count.durations.counts, then.durations.counts)
            yield pb.OperationSample(name=name, errors=count.errors - then.errors, durations=durations)
