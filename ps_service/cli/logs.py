"""Configures where and how the command line writes log records."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor


def configure(level: str, format: Literal["auto", "text", "json"]) -> None:
    """Sends all log records to standard error, as text or as one JSON object per line.

    In JSON, the fields of an event of the owner stand beside its text, which is complete by itself. Tracebacks never
    hold the values of variables: these are tensors, and arguments of trainers.
    """
    as_text = format == "text" or (format == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[Processor]
    if as_text:
        shared.append(_with_traceback)
        rendering = [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    else:
        shared.append(structlog.stdlib.ExtraAdder())
        as_dicts = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
        rendering = [as_dicts, structlog.processors.JSONRenderer()]
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


def _with_traceback(logger: Any, method: str, event: EventDict) -> EventDict:
    """Puts the traceback of an event of the owner behind its text."""
    traceback = getattr(event["_record"], "traceback", "")
    if traceback:
        event["exception"] = traceback.rstrip("\n")
    return event
