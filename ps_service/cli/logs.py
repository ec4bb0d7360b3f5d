"""Configures where and how the command line writes log records."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def configure(level: str, format: Literal["auto", "text", "json"]) -> None:
    """Sends all log records to standard error, as text or as one JSON object per line."""
    as_text = format == "text" or (format == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if as_text
        else [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
