"""Spans of OpenTelemetry. Imported only where a program has configured that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from opentelemetry import context, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer, TracerProvider

    from ps_wire.v1.probes_pb2 import Probe

MAX_TRACEPARENT: Final = 55
"""Characters of a `traceparent` of the version that there is."""

MAX_TRACESTATE: Final = 512
"""Most characters of a `tracestate` that are read and sent on, as W3C Trace Context has it."""

MAX_NAME: Final = 256
"""Most characters of the name of a span: what a request calls stands in it as it came."""

_MAX_TEXT: Final = 1024
"""Most characters of the text of an error in a span."""

_propagator: Final = TraceContextTextMapPropagator()


class Tracing:
    """Makes spans with a tracer provider; without one, with that of the program."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("torch-parameter-server", tracer_provider=provider)

    def begin(self, name: str, attributes: Mapping[str, str | int], is_request: bool = False) -> Span:
        """Begins a span, as a child of that of this thread or task. Another process serves what `is_request`."""
        kind = SpanKind.CLIENT if is_request else SpanKind.INTERNAL
        return Span(self._tracer, self._tracer.start_span(name[:MAX_NAME], kind=kind, attributes=attributes))

    def serve(self, probe: Probe, name: str, attributes: Mapping[str, str | int]) -> Span | None:
        """Begins the span of a request, which carries the span of its caller; None if that is not valid."""
        carrier = {"traceparent": probe.traceparent}
        if len(probe.traceparent) != MAX_TRACEPARENT:
            return None
        if 0 < len(probe.tracestate) <= MAX_TRACESTATE:
            carrier["tracestate"] = probe.tracestate
        above = _propagator.extract(carrier, context.Context())
        if not trace.get_current_span(above).get_span_context().is_valid:
            return None
        span = self._tracer.start_span(name[:MAX_NAME], above, SpanKind.SERVER, attributes)
        return Span(self._tracer, span)


class Span:
    """A part of a trace: a pass, a request, or what an owner does for one."""

    __slots__ = ("_ended", "_span", "_tracer")

    def __init__(self, tracer: Tracer, span: OtelSpan) -> None:
        self._tracer = tracer
        self._span = span
        self._ended = False

    def carry(self, probe: Probe) -> None:
        """Writes into a request that it is a child of this span."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, trace.set_span_in_context(self._span, context.Context()))
        probe.traceparent = carrier.get("traceparent", "")
        state = carrier.get("tracestate", "")
        if len(state) <= MAX_TRACESTATE:
            probe.tracestate = state

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A block of this thread or task whose spans are children of this one."""
        token = context.attach(trace.set_span_in_context(self._span))
        try:
            yield
        finally:
            context.detach(token)

    def part(self, name: str) -> Span:
        """Begins a child."""
        return Span(self._tracer, self._tracer.start_span(name, trace.set_span_in_context(self._span)))

    def fail(self, error: BaseException) -> None:
        """Ends it with an error. Only the first end counts."""
        if not self._ended:
            text = str(error)[:_MAX_TEXT]
            self._span.set_status(Status(StatusCode.ERROR, text))
            self._span.set_attribute("error.type", type(error).__name__)
            self.end()

    def end(self) -> None:
        """Ends it. Only the first end counts."""
        if not self._ended:
            self._ended = True
            self._span.end()
