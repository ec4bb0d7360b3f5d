"""Spans of passes and requests, as OpenTelemetry records them where the program has configured it."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ps_wire.tracing.spans import Span as Span
    from ps_wire.tracing.spans import Tracing as Tracing

_log = logging.getLogger(__name__)

_API: Final = "opentelemetry.trace"

_VARIABLES: Final = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_PYTHON_TRACER_PROVIDER",
)
"""Environment variables of OpenTelemetry each of which asks for traces."""


def of_program(name: str = "") -> Tracing | None:
    """What makes the spans of this program; None if it has not configured traces.

    The program has configured them if it has set a tracer provider, or if variables of OpenTelemetry ask for traces;
    then a provider with the exporters that they name is set here. Nothing of OpenTelemetry is imported otherwise. Where
    no variable gives the name of the service, it is `name`, or if that is empty, OpenTelemetry's own default.
    """
    try:
        if not _has_provider():
            if not _asked():
                return None
            importlib.import_module("ps_wire.tracing.configuration").configure(name)
        tracing: Tracing = importlib.import_module("ps_wire.tracing.spans").Tracing()
    except ImportError as error:
        _log.warning("the environment asks for traces, and there are none: %s", error)
        return None
    return tracing


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
