"""Looks at how a request runs: records the events of torch's profiler for its caller, and its span in a trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd.profiler_legacy import _parse_legacy_records
from torch.autograd.profiler_util import MEMORY_EVENT_NAME

from ps_service.parameters.locks import WouldBlock
from ps_service.requests.error_answers import title
from ps_wire import errors
from ps_wire.limits import MAX_FRAME_BYTES
from ps_wire.profiling import events, ranges
from ps_wire.profiling.events import MAX_PROFILE_BYTES, Event

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_wire.profiling.ranges import Range
    from ps_wire.tracing import Span
    from ps_wire.v1.frames_pb2 import Reply
    from ps_wire.v1.probes_pb2 import Probe as ProbeMessage

# The profiler that torch's own rpc uses as well: it belongs to one thread, so that many requests can be profiled at the
# same time, and it starts and stops within microseconds. There is only one Kineto in a process.
_torchs: Final[Any] = torch.autograd
_CONFIG: Final = _torchs.ProfilerConfig(
    _torchs.ProfilerState.CPU, True, True, False, False, False, torch._C._profiler._ExperimentalConfig()
)


def probe_of(engine: Engine, asked: ProbeMessage, operation: str, request: Any) -> Probe | None:
    """What looks at a request, as its caller asks for; None if there is nothing to do."""
    span = None
    if engine.tracing is not None and asked.traceparent:
        name = title(engine, operation, request) if operation == "call" else operation
        span = engine.tracing.serve(asked, name, {"ps.operation": operation, "ps.owner": engine.name})
    return Probe(asked.profile, span) if asked.profile or span is not None else None


@dataclass(slots=True, eq=False)
class Probe:
    """Looks at how a request runs: with the profiler if its caller wants its events, and in a span if it is traced."""

    _profiles: bool
    _span: Span | None = None
    _began_ns: int = 0
    _events: list[Event] = field(default_factory=list)
    _ranges: list[Range] = field(default_factory=list)

    def run(self, work: Callable[..., None], *args: Any) -> None:
        """Runs a part of the request in this thread. Nothing is kept of one that raises: after `WouldBlock`, it runs
        again in another thread."""
        with self._span.inside() if self._span is not None else nullcontext():
            self._run(work, *args)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A block with a span of its own, below that of the request. One that raises `WouldBlock` runs again, and has
        none."""
        if self._span is None:
            yield
            return
        span = self._span.part(name)
        try:
            yield
        except WouldBlock:
            raise
        except BaseException as error:
            span.fail(error)
            raise
        span.end()

    def _run(self, work: Callable[..., None], *args: Any) -> None:
        began_ns = time.time_ns()
        self._began_ns = self._began_ns or began_ns
        # The thread of a caller in this process may be profiled itself, and these are then events of that profile.
        if not self._profiles or _torchs._profiler_enabled():
            work(*args)
            return
        records: Sequence[Any] = ()
        with ranges.collecting() as made:
            _torchs._enable_profiler_legacy(_CONFIG)
            try:
                work(*args)
            finally:
                # The code that ran may have ended the profiler.
                with suppress(RuntimeError):
                    records = _torchs._disable_profiler_legacy()
        if records:
            found = _parse_legacy_records(records)
            self._events += [_event(each, began_ns) for each in found if each.name != MEMORY_EVENT_NAME]
        self._ranges += made

    def write(self, reply: Reply) -> None:
        """Writes what was recorded into the reply, and ends the span."""
        self.ended(reply)
        if self._profiles and reply.ByteSize() < MAX_FRAME_BYTES - 2 * MAX_PROFILE_BYTES:
            # Requests that were made may have been answered only now.
            made = chain.from_iterable(map(events.of_range, self._ranges))
            found = sorted(chain(self._events, made), key=attrgetter("start_ns"))
            events.write(reply.profile, self._began_ns or time.time_ns(), time.time_ns(), found)

    def ended(self, reply: Reply) -> None:
        """Ends the span, because the request has a reply. Only the first end counts."""
        if self._span is not None:
            if reply.HasField("error"):
                self._span.fail(errors.from_message(reply.error))
            else:
                self._span.end()


def _event(event: Any, began_ns: int) -> Event:
    interval = event.time_range
    return Event(
        event.name,
        began_ns + int(interval.start * 1000),
        int(interval.elapsed_us() * 1000),
        event.thread,
        memory_bytes=event.cpu_memory_usage,
        shapes=event.input_shapes or (),
        asynchronous=event.is_async,
    )
