"""Tests of spans, of what carries them in a request, and of when a program is traced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from ps_service.parameters.locks import WouldBlock
from ps_service.requests.probe import Probe
from ps_wire.tracing.spans import MAX_NAME, MAX_TRACESTATE, Tracing
from ps_wire.v1 import probes_pb2 as pb
from tests.conftest import ROOT

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    yield made
    made.shutdown()


@pytest.fixture
def tracing(provider: TracerProvider) -> Tracing:
    return Tracing(provider)


def test_a_request_carries_its_span_to_the_owner(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    above = tracing.begin("pass", {})
    with above.inside():
        request = tracing.begin("f", {"ps.owner": "ps0"}, is_request=True)
    message = pb.Probe()
    request.carry(message)
    served = tracing.serve(message, "f", {"ps.owner": "ps0"})
    assert served is not None
    for span in (served, request, above):
        span.end()
    of_served, of_request, of_pass = exporter.get_finished_spans()
    assert of_served.parent is not None and of_served.parent.span_id == of_request.context.span_id
    assert of_request.parent is not None and of_request.parent.span_id == of_pass.context.span_id
    assert (of_pass.kind, of_request.kind, of_served.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.SERVER)
    assert len({span.context.trace_id for span in (of_served, of_request, of_pass)}) == 1


@pytest.mark.parametrize(
    "traceparent", ["", "no", VALID + "-" + "x" * 100_000, VALID.replace("0af7", "zzzz"), "00-" + "0" * 32 + VALID[35:]]
)
def test_what_is_no_span_of_a_caller_is_not_read(tracing: Tracing, traceparent: str) -> None:
    assert tracing.serve(pb.Probe(traceparent=traceparent), "f", {}) is None


def test_a_long_state_of_a_trace_is_not_read(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    for state in ("a=1", "a=" + "1" * MAX_TRACESTATE):
        span = tracing.serve(pb.Probe(traceparent=VALID, tracestate=state), "f", {})
        assert span is not None
        span.end()
    assert [dict(each.context.trace_state) for each in exporter.get_finished_spans()] == [{"a": "1"}, {}]


def test_a_long_name_is_cut(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    span = tracing.serve(pb.Probe(traceparent=VALID), "f" * 100_000, {})
    assert span is not None
    span.end()
    tracing.begin("f" * 100_000, {}).end()
    assert [len(each.name) for each in exporter.get_finished_spans()] == [MAX_NAME] * 2


def test_a_long_state_of_a_trace_is_not_sent(tracing: Tracing) -> None:
    state = TraceState([(f"k{n}", "v" * 200) for n in range(5)])
    above = trace.NonRecordingSpan(SpanContext(1, 1, True, TraceFlags(1), state))
    message = pb.Probe()
    with trace.use_span(above):
        tracing.begin("f", {}).carry(message)
    assert message.traceparent and not message.tracestate


def test_a_caller_that_is_not_sampled_has_no_spans_on_owners(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    message = pb.Probe()
    Tracing(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)).begin("f", {}).carry(message)
    served = tracing.serve(message, "f", {})
    assert served is not None
    served.end()
    assert exporter.get_finished_spans() == ()


def test_only_the_first_end_counts(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    span = tracing.begin("f", {})
    span.end()
    span.end()
    span.fail(ValueError("late"))
    [found] = exporter.get_finished_spans()
    assert found.status.is_unset


def test_a_part_that_runs_again_has_one_span(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    probe = Probe(False, tracing.serve(pb.Probe(traceparent=VALID), "backward", {}))
    with pytest.raises(WouldBlock), probe.part("step"):
        raise WouldBlock
    with probe.part("step"):
        pass
    with pytest.raises(ValueError, match="expected"), probe.part("step"):
        raise ValueError("expected")
    first, second = exporter.get_finished_spans()
    assert first.status.is_ok or first.status.is_unset
    assert second.status.description == "expected"


REPORTS = """
import sys
from ps_wire import tracing
made = tracing.of_program("ps0")
if made is not None:
    made.begin("f", {}).end()
print("traced" if made is not None else "not traced")
"""


@pytest.mark.parametrize(
    ("variables", "says", "warns"),
    [
        ({}, "not traced", ""),
        ({"OTEL_TRACES_EXPORTER": "none"}, "not traced", ""),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, "not traced", ""),
        ({"OTEL_TRACES_EXPORTER": "console"}, '"service.name": "ps0"', ""),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "mine"}, '"service.name": "mine"', ""),
        ({"OTEL_TRACES_EXPORTER": "unheard-of"}, "not traced", "there is no exporter 'unheard-of'"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:1"}, "not traced", "opentelemetry-exporter-otlp-proto-grpc"),
    ],
    ids=["nothing", "none", "disabled", "console", "named", "unknown", "not installed"],
)
def test_variables_of_opentelemetry_ask_for_traces(variables: dict[str, str], says: str, warns: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REPORTS], cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    )
    assert says in done.stdout
    assert warns in done.stderr
