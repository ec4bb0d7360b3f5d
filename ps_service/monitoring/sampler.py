"""Measures an owner once a second, for the page of its group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psutil

from ps_service.metrics.counters import DURATION_BOUNDS, LOOKS
from ps_service.metrics.history import SAMPLE_SECONDS, OperationSample, Sample, buckets
from ps_service.passes.staleness import STALENESS_BOUNDS

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.metrics.counters import OperationCount

_log = logging.getLogger(__name__)

_NO_DURATIONS: Final = (0,) * (len(DURATION_BOUNDS) + 1)


class Sampler:
    """Adds a sample to the history of an owner every second. A sample takes a quarter of a millisecond.

    Args:
        engine: The owner.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._process = psutil.Process()
        self._number = 0
        self._began = clock()
        self._steps, self._staleness = self._counted_steps()
        self._trainer_steps = engine.sessions.steps
        self._operations = engine.counters.operations()
        self._received, self._sent = self._traffic()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Starts to sample."""
        self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Stops, if it was started."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def sample(self) -> Sample:
        """Measures what has happened since the last sample, and adds it to the history."""
        engine, now = self._engine, self._clock()
        steps, staleness = self._counted_steps()
        trainer_steps = engine.sessions.steps
        operations = engine.counters.operations()
        received, sent = self._traffic()
        budget = engine.budget
        self._number += 1
        made = Sample(
            number=self._number,
            ended=now,
            seconds=now - self._began,
            steps=steps - self._steps,
            trainer_steps=trainer_steps - self._trainer_steps,
            staleness=buckets(staleness, self._staleness),
            operations=self._finished(operations),
            received_bytes=received - self._received,
            sent_bytes=sent - self._sent,
            connected_sessions=engine.sessions.connected,
            requests_in_flight=engine.counters.running,
            resident_bytes=self._process.memory_info().rss,
            parameter_bytes=engine.census.parameter_bytes,
            table_bytes=sum(table.nbytes for table in list(engine.census.tables.values())),
            request_bytes=budget.requests + budget.waiting,
            answer_bytes=engine.reply_cache.nbytes + budget.unsent,
            context_bytes=engine.held.nbytes,
        )
        engine.history.add(made)
        self._began, self._steps, self._staleness, self._operations = now, steps, staleness, operations
        self._trainer_steps, self._received, self._sent = trainer_steps, received, sent
        return made

    async def _run(self) -> None:
        while True:
            # Against the clock, so that the pauses do not add up.
            await asyncio.sleep(max(self._began + SAMPLE_SECONDS - self._clock(), 0.0))
            try:
                self.sample()
            except Exception:
                _log.exception("a sample for the page failed; the next will be tried")
                self._began = self._clock()

    def _counted_steps(self) -> tuple[int, list[int]]:
        steps, staleness = 0, [0] * (len(STALENESS_BOUNDS) + 1)
        for count in self._engine.counters.steps.snapshot().values():
            steps += count.steps
            if count.steps:
                staleness = [one + more for one, more in zip(staleness, count.staleness.counts, strict=True)]
        return steps, staleness

    def _finished(self, operations: dict[str, OperationCount]) -> tuple[OperationSample, ...]:
        found = []
        for name, count in operations.items():
            if name in LOOKS:
                continue
            before = self._operations.get(name)
            then = _NO_DURATIONS if before is None else before.durations.counts
            if count.durations.counts == then:
                continue
            errors = count.errors - (0 if before is None else before.errors)
            found.append(OperationSample(name, errors, buckets(count.durations.counts, then)))
        return tuple(found)

    def _traffic(self) -> tuple[int, int]:
        traffic = self._engine.counters.traffic.values()
        return sum(each.received for each in traffic), sum(each.sent for each in traffic)
