"""Spans of passes and requests, as OpenTelemetry records them where the program has configured it."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_wire.v1.probes_pb2 import Probe

_log = logging.getLogger(__name__)

_API: Final = "opentelemetry.trace"

_VARIABLES: Final = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_PYTHON_TRACER_PROVIDER",
)
"""Environment variables of OpenTelemetry each of which asks for traces."""


class Span(Protocol):
    """A part of a trace: a pass, a request, or what an owner does for one."""

    def carry(self, probe: Probe) -> None:
        """Writes into a request that it is a child of this span."""

    def inside(self) -> AbstractContextManager[None]:
        """A block of this thread or task whose spans are children of this one."""

    def part(self, name: str) -> Span:
        """Begins a child."""

    def fail(self, error: BaseException) -> None:
        """Ends it with an error. Only the first end counts."""

    def end(self) -> None:
        """Ends it. Only the first end counts."""


class Tracing(Protocol):
    """Makes spans."""

    def begin(self, name: str, attributes: Mapping[str, str | int], is_request: bool = False) -> Span:
        """Begins a span, as a child of that of this thread or task.

        Args:
            name: Its name.
            attributes: Its attributes.
            is_request: Whether it is a request that another process serves.
        """

    def serve(self, probe: Probe, name: str, attributes: Mapping[str, str | int]) -> Span | None:
        """Begins the span of a request that came from another process.

        Args:
            probe: Holds the span of the caller.
            name: Its name.
            attributes: Its attributes.

        Returns:
            None if the request holds no valid span.
        """


def of_program(name: str = "") -> Tracing | None:
    """What makes the spans of this program; None if it has not configured traces.

    The program has configured them if it has set a tracer provider, or if variables of OpenTelemetry ask for traces;
    then a provider with the exporters that they name is set here. Nothing of OpenTelemetry is imported otherwise.

    Args:
        name: Name of the service if no variable gives one; empty for OpenTelemetry's own default.
    """
    try:
        if not _has_provider():
            if not _asked():
                return None
            importlib.import_module("ps_wire.tracing.configuration").configure(name)
        made = importlib.import_module("ps_wire.tracing.spans").OtelTracing()
    except ImportError as error:
        _log.warning("the environment asks for traces, and there are none: %s", error)
        return None
    return cast("Tracing", made)


def _has_provider() -> bool:
    """Whether the program has set a tracer provider."""
    api: Any = sys.modules.get(_API)
    return api is not None and not isinstance(
        api.get_tracer_provider(), (api.ProxyTracerProvider, api.NoOpTracerProvider)
    )


def _asked() -> bool:
    """Whether variables ask for traces."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(os.environ.get(each) for each in _VARIABLES)
