"""Sets the tracer provider that variables of OpenTelemetry ask for. Needs its SDK, and the exporters that they name."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

_BY_PROTOCOL: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def configure(name: str) -> None:
    """Sets a provider with the exporters that `OTEL_TRACES_EXPORTER` names. It reads further variables itself."""
    exporters = [_exporter(each.strip()) for each in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    has_name = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name} if name and not has_name else {}))
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(provider)


def _exporter(name: str) -> Any:
    """The class of an exporter. Raises `ImportError` if it is not installed."""
    full = name
    if name == "otlp":
        protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        full = _BY_PROTOCOL.get(os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol), name)
    for entry in entry_points(group="opentelemetry_traces_exporter", name=full):
        return entry.load()
    raise ImportError(f"there is no exporter {full!r}; install opentelemetry-exporter-{full.replace('_', '-')}")
